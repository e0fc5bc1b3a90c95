package tidegate

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate/clients/go/api"
)

// The kinds of a [ProblemError], for [errors.Is]: one for each reaction of a caller.
var (
	// ErrInvalidRequest: the request is wrong (400, 405, 406, 413, 414, 415, 431). Correct it.
	ErrInvalidRequest = errors.New("the request is wrong")
	// ErrUnauthorized: the token is missing or not valid (401).
	ErrUnauthorized = errors.New("the token is missing or not valid")
	// ErrForbidden: the token does not allow the request (403).
	ErrForbidden = errors.New("the token does not allow the request")
	// ErrNotFound: there is no such job, type, queue, ... (404). The code says which.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the state does not allow the request (409). The code says why.
	ErrConflict = errors.New("the state does not allow the request")
	// ErrPreconditionFailed: the resource has changed since it was read (412).
	ErrPreconditionFailed = errors.New("the resource has changed")
	// ErrUnavailable: the server is busy or is stopping (429, 503), also after the repeats.
	ErrUnavailable = errors.New("the server is unavailable")
	// ErrServerFault: the server failed (500). Its log has the cause under RequestID.
	ErrServerFault = errors.New("the server failed")
	// ErrWaitTimeout: the job did not end within the wait.
	ErrWaitTimeout = errors.New("the job did not end within the wait")
	// ErrJobFailed: the job ended otherwise than succeeded. State, Reason and JobMessage say how.
	ErrJobFailed = errors.New("the job ended otherwise than succeeded")
	// ErrUnreachable: no answer came. The request may or may not have been processed.
	ErrUnreachable = errors.New("no answer")
	// ErrUnexpectedAnswer: the answer is not one of tidegate, or is larger than this client reads.
	ErrUnexpectedAnswer = errors.New("unexpected answer")
	// ErrRefused: a request is not a push of the server.
	ErrRefused = errors.New("not a push of the server")
)

// Why an attempt is over before its handler has ended: the cause of the handler's context.
var (
	// ErrCancelled: a caller cancelled the job.
	ErrCancelled = errors.New("the attempt is over: cancelled")
	// ErrLeaseLost: another worker may have the job.
	ErrLeaseLost = errors.New("the attempt is over: lease_lost")
	// ErrStopping: this worker ends now.
	ErrStopping = errors.New("the attempt is over: stopping")
)

// ErrLater is what the handler of a push returns when the result comes later: the answer is 202.
// Keep the job's Callback; its methods report the result.
var ErrLater = errors.New("the result comes later")

// A ProblemError says that the server refused a request. Use [errors.Is] with ErrNotFound and the
// like for its kind.
type ProblemError struct {
	// Status is the HTTP status.
	Status int
	// Problem is the whole problem document (RFC 9457). Its Code is a stable word for programs.
	Problem api.Problem
	// RetryAfter is the wait that the answer requested; nil if it did not.
	RetryAfter *time.Duration
	// RequestID is the server's id of the request, by which its log names the cause.
	RequestID string
}

// Error returns the detail, the field and the code.
func (e *ProblemError) Error() string {
	text := e.Problem.Detail
	if text == "" {
		text = e.Problem.Title
	}
	if text == "" {
		text = fmt.Sprintf("HTTP %d", e.Status)
	}
	if e.Problem.Field != nil {
		text += " [" + *e.Problem.Field + "]"
	}
	if e.Problem.Code != "" {
		return text + " (" + e.Problem.Code + ")"
	}
	return fmt.Sprintf("%s (%d)", text, e.Status)
}

// Code returns the stable word of the problem, such as job_not_found; empty if there was none.
func (e *ProblemError) Code() string { return e.Problem.Code }

// Is reports whether target is the kind of the problem.
func (e *ProblemError) Is(target error) bool { return target == e.kind() }

// State returns how the job ended, with ErrJobFailed: failed, expired, cancelled or dropped.
func (e *ProblemError) State() string {
	if e.Problem.State == nil {
		return ""
	}
	return *e.Problem.State
}

// Reason returns the reason of the job's latest error, with ErrJobFailed.
func (e *ProblemError) Reason() string {
	if e.Problem.Error == nil {
		return ""
	}
	return string(e.Problem.Error.Reason)
}

// JobMessage returns the message of the job's latest error, with ErrJobFailed.
func (e *ProblemError) JobMessage() string {
	if e.Problem.Error == nil || e.Problem.Error.Message == nil {
		return ""
	}
	return *e.Problem.Error.Message
}

func (e *ProblemError) kind() error {
	switch e.Problem.Code {
	case "job_failed":
		return ErrJobFailed
	case "wait_timeout":
		return ErrWaitTimeout
	}
	switch e.Status {
	case 401:
		return ErrUnauthorized
	case 403:
		return ErrForbidden
	case 404:
		return ErrNotFound
	case 409:
		return ErrConflict
	case 412:
		return ErrPreconditionFailed
	case 429, 503:
		return ErrUnavailable
	}
	if e.Status >= 500 {
		return ErrServerFault
	}
	return ErrInvalidRequest
}

// Retryable reports whether the same request may succeed later, as nothing is wrong with it: no answer
// came, the server is busy or not there (429, 502, 503, 504), or its code says retry. This client has
// repeated a request that is safe to repeat by then.
func Retryable(err error) bool {
	var problem *ProblemError
	if errors.As(err, &problem) {
		return slices.Contains([]int{429, 502, 503, 504}, problem.Status) ||
			slices.Contains([]string{"body_timeout", "concurrent_update"}, problem.Code())
	}
	return errors.Is(err, ErrUnreachable)
}

// RetryAfter returns the wait that the answer requested, and whether it did.
func RetryAfter(err error) (time.Duration, bool) {
	var problem *ProblemError
	if errors.As(err, &problem) && problem.RetryAfter != nil {
		return *problem.RetryAfter, true
	}
	return 0, false
}

// A PermanentError ends the job failed without another attempt; see [Permanent].
type PermanentError struct {
	// Err is what went wrong.
	Err error
	// Details is any JSON value of at most 16 KiB, which the job shows as its error's details.
	Details any
}

// Error returns the text of the wrapped error.
func (e *PermanentError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *PermanentError) Unwrap() error { return e.Err }

// Permanent returns an error by which a handler ends the job failed without another attempt.
// Details are optional.
func Permanent(err error, details any) error { return &PermanentError{Err: err, Details: details} }

type handBack struct {
	status api.Status
	// When a snoozed job may start again: after delay, or at until if that is set.
	delay   time.Duration
	until   time.Time
	message string
}

func (e *handBack) Error() string { return e.message }

// Snooze returns an error by which a handler hands the job back for a while. The attempt does not
// count.
func Snooze(delay time.Duration, message string) error {
	return &handBack{status: api.StatusSnoozed, delay: max(0, delay), message: or(message, snoozedMessage)}
}

// SnoozeUntil returns an error by which a handler hands the job back until an instant; one in the past
// means now. The attempt does not count.
func SnoozeUntil(at time.Time, message string) error {
	return &handBack{status: api.StatusSnoozed, until: at, message: or(message, snoozedMessage)}
}

const snoozedMessage = "snoozed by its handler"

// Release returns an error by which a handler hands the job back at once, before its work has begun.
func Release(message string) error {
	return &handBack{status: api.StatusReleased, message: or(message, "released by its handler")}
}
