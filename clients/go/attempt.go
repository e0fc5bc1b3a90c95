package tidegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate/clients/go/api"
)

const (
	maxMessageBytes    = 4 << 10
	maxDetailsBytes    = 16 << 10
	maxCheckpointBytes = 64 << 10
	// Lines that wait for the next heartbeat; the oldest go first. A request has at most 1000.
	maxPendingLines = 1000
	// Most errors of a chain that a report has.
	maxChain = 16
)

// An Attempt is what a handler gets of its job: who it is, and what it can show and store.
// Goroutines may share it.
type Attempt struct {
	// ID is the job's id: make the work idempotent by it.
	ID   string
	Type string
	// Number is the number of this attempt, from 1.
	Number      int64
	MaxAttempts int64
	Attributes  map[string]any
	Headers     map[string]string
	// Data is what the job carries, as it came.
	Data json.RawMessage

	mu         sync.Mutex
	checkpoint json.RawMessage
	shown      api.Heartbeat
	changed    chan struct{}
}

// NewAttempt returns the attempt with a number, from 1, of a job. It is for tests that call a handler
// without a server; a worker makes its own.
func NewAttempt(job *api.Job, number int64) *Attempt {
	return &Attempt{
		ID: job.ID, Type: job.Type, Number: number, MaxAttempts: job.MaxAttempts,
		Attributes: job.Attributes, Headers: job.Headers, Data: job.Data,
		checkpoint: job.Checkpoint, changed: make(chan struct{}, 1),
	}
}

// Traceparent returns the job's W3C trace context; empty if it has none. Enqueues with the handler's
// context carry it on.
func (a *Attempt) Traceparent() string {
	for name, value := range a.Headers {
		if strings.EqualFold(name, "traceparent") {
			return value
		}
	}
	return ""
}

// Progress shows progress, 0 to 100, with a note that may be empty. It is sent within a second, and
// only the latest.
func (a *Attempt) Progress(percent float64, note string) {
	percent = min(100, max(0, percent))
	a.mu.Lock()
	a.shown.Progress = &percent
	a.shown.Note = optional(cut(note, maxMessageBytes))
	a.mu.Unlock()
	a.hasten()
}

// Log adds a line to the job's log, with fields that may be nil. It is sent within a second, or with
// the report.
func (a *Attempt) Log(level api.LogLevel, text string, fields map[string]any) {
	// Lines with a time are kept once, although a request is repeated.
	line := api.NewLogLine{Time: instant(time.Now()), Level: &level, Text: text}
	for name, value := range fields {
		content, err := json.Marshal(value)
		if err != nil {
			content, _ = json.Marshal(fmt.Sprint(value))
		}
		if line.Fields == nil {
			line.Fields = map[string]json.RawMessage{}
		}
		line.Fields[name] = content
	}
	a.mu.Lock()
	a.shown.Log = append(a.shown.Log, line)
	a.shown.Log = a.shown.Log[max(0, len(a.shown.Log)-maxPendingLines):]
	a.mu.Unlock()
	a.hasten()
}

// Checkpoint reads what an earlier attempt, or this one, has stored into a pointer. It returns false
// if nothing is stored.
func (a *Attempt) Checkpoint(into any) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.checkpoint) == 0 || bytes.Equal(a.checkpoint, []byte("null")) {
		return false, nil
	}
	return true, json.Unmarshal(a.checkpoint, into)
}

// SaveCheckpoint stores what the next attempt needs to go on: any JSON value of at most 64 KiB. It is
// sent within a second, and with a report that does not succeed.
func (a *Attempt) SaveCheckpoint(value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(content) > maxCheckpointBytes {
		return errors.New("a checkpoint has at most 64 KiB")
	}
	a.mu.Lock()
	a.checkpoint, a.shown.Checkpoint = content, content
	a.mu.Unlock()
	a.hasten()
	return nil
}

func (a *Attempt) hasten() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *Attempt) hasChanges() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shown.Progress != nil || a.shown.Checkpoint != nil || a.shown.Log != nil
}

// take returns what was not sent yet, as a heartbeat.
func (a *Attempt) take() api.Heartbeat {
	a.mu.Lock()
	defer a.mu.Unlock()
	shown := a.shown
	a.shown = api.Heartbeat{}
	shown.Attempt = a.Number
	return shown
}

// putBack takes back what a heartbeat without an answer had, unless there is something newer.
func (a *Attempt) putBack(shown api.Heartbeat) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.shown.Progress == nil {
		a.shown.Progress, a.shown.Note = shown.Progress, shown.Note
	}
	if a.shown.Checkpoint == nil {
		a.shown.Checkpoint = shown.Checkpoint
	}
	a.shown.Log = append(shown.Log, a.shown.Log...)
	a.shown.Log = a.shown.Log[max(0, len(a.shown.Log)-maxPendingLines):]
}

// complete adds to a report what no heartbeat has sent.
func (a *Attempt) complete(report *api.Report) {
	rest := a.take()
	report.Attempt, report.Log = a.Number, rest.Log
	if report.Status != api.StatusSucceeded {
		report.Checkpoint = rest.Checkpoint
	}
}

// handlerFunc runs an attempt and returns its result.
type handlerFunc func(ctx context.Context, job *Attempt) (any, error)

// typed returns the function that reads the data as a T and then calls run.
func typed[T any](run func(ctx context.Context, data T, job *Attempt) (any, error)) handlerFunc {
	return func(ctx context.Context, job *Attempt) (any, error) {
		var data T
		if len(job.Data) > 0 {
			if err := json.Unmarshal(job.Data, &data); err != nil {
				// The same data is wrong in every attempt.
				return nil, Permanent(fmt.Errorf("the data cannot be read: %w", err), nil)
			}
		}
		return run(ctx, data, job)
	}
}

// Call calls a handler as a worker does: with the data of the job as a T, and with a context whose
// requests carry the job's traceparent. It is for tests; see the package tidegatetest.
func Call[T any](
	ctx context.Context, run func(ctx context.Context, data T, job *Attempt) (any, error), job *Attempt,
) (any, error) {
	return typed(run)(withTrace(ctx, job), job)
}

func withTrace(ctx context.Context, job *Attempt) context.Context {
	if trace := job.Traceparent(); trace != "" {
		return WithTraceparent(ctx, trace)
	}
	return ctx
}

// perform runs a handler, and returns what is to be reported; nil if the lease was lost, because
// another attempt has the job, or if the handler of a push returned ErrLater.
func perform(ctx context.Context, run handlerFunc, job *Attempt) (report *api.Report, err error) {
	ctx = withTrace(ctx, job)
	result, err := recovered(ctx, run, job)
	if errors.Is(context.Cause(ctx), ErrLeaseLost) {
		return nil, ErrLeaseLost
	}
	if errors.Is(err, ErrLater) {
		return nil, ErrLater
	}
	if err != nil {
		return reportOf(ctx, err), nil
	}
	content, err := json.Marshal(result)
	if err != nil {
		message := fmt.Sprintf("the result is not a JSON value: %v", err)
		return failure(message, detailsOf(err), false), nil
	}
	return &api.Report{Status: api.StatusSucceeded, Result: content}, nil
}

type panicError struct {
	value any
	trace string
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func recovered(ctx context.Context, run handlerFunc, job *Attempt) (result any, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value, string(debug.Stack())}
		}
	}()
	return run(ctx, job)
}

// reportOf returns the report of an attempt whose handler returned err.
func reportOf(ctx context.Context, err error) *api.Report {
	var back *handBack
	if errors.As(err, &back) {
		report := &api.Report{Status: back.status, Message: Ptr(cut(back.message, maxMessageBytes))}
		switch {
		case back.status != api.StatusSnoozed:
		case back.until.IsZero():
			report.DelaySeconds = Ptr(back.delay.Seconds())
		default:
			report.RunAt = instant(back.until)
		}
		return report
	}
	cause := context.Cause(ctx)
	if cause != nil && (errors.Is(err, cause) || errors.Is(err, context.Canceled)) {
		if errors.Is(cause, ErrCancelled) {
			return failure("cancelled", nil, true)
		}
		return failure("its worker stopped before it ended", nil, true)
	}
	var permanent *PermanentError
	if errors.As(err, &permanent) {
		details := permanent.Details
		if details == nil {
			details = detailsOf(permanent.Err)
		}
		return failure(err.Error(), details, false)
	}
	return failure(err.Error(), detailsOf(err), true)
}

func failure(message string, details any, retryable bool) *api.Report {
	report := &api.Report{Status: api.StatusFailed, Message: Ptr(cut(message, maxMessageBytes))}
	if !retryable {
		report.Retryable = Ptr(false)
	}
	if details != nil {
		content, err := json.Marshal(details)
		if err != nil || len(content) > maxDetailsBytes {
			text := cut(strings.ToValidUTF8(string(content), ""), maxDetailsBytes/4)
			content, _ = json.Marshal(map[string]string{"cut": text})
		}
		report.Error = content
	}
	return report
}

// detailsOf returns the type of an error with those that it wraps, and the stack of a panic. Errors
// of Go have no stack trace.
func detailsOf(err error) any {
	var panicked *panicError
	if errors.As(err, &panicked) {
		return map[string]string{"type": "panic", "trace": cut(panicked.trace, maxDetailsBytes/2)}
	}
	chain := chainOf(err, nil)
	trace := cut(strings.Join(chain, "\n"), maxDetailsBytes/2)
	return map[string]string{"type": fmt.Sprintf("%T", err), "trace": trace}
}

// chainOf adds an error to a chain, and those that it wraps or joins.
func chainOf(err error, chain []string) []string {
	if err == nil || len(chain) == maxChain {
		return chain
	}
	chain = append(chain, fmt.Sprintf("%T: %v", err, err))
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		return chainOf(err.Unwrap(), chain)
	case interface{ Unwrap() []error }:
		for _, inner := range err.Unwrap() {
			chain = chainOf(inner, chain)
		}
	}
	return chain
}

// cut returns text, at most most bytes of it.
func cut(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}
