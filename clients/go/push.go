package tidegate

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate/clients/go/api"
)

const (
	defaultTolerance = 5 * time.Minute
	maxBodyBytes     = 8 << 20
	maxSignatures    = 16
	// How often a background handler learns whether its job was cancelled.
	beatTime           = 10 * time.Second
	statusNotRetryable = 489
)

// Verify checks the signature of a push or a callback, as Standard Webhooks describe. Secrets are
// those of the type's signing_secret: one, or several during a rotation. The error is ErrRefused if
// the signature is wrong, or its time further from now than the tolerance (0: five minutes).
func Verify(secrets []string, header http.Header, body []byte, now time.Time, tolerance time.Duration) error {
	keys, err := keysOf(secrets)
	if err != nil {
		return err
	}
	id, timestamp := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp")
	at, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: webhook-timestamp is missing, or is not a number of seconds", ErrRefused)
	}
	if age := now.Sub(time.Unix(at, 0)).Abs(); age > or(tolerance, defaultTolerance) {
		return fmt.Errorf("%w: webhook-timestamp is too far from the present", ErrRefused)
	}
	given := strings.Fields(header.Get("Webhook-Signature"))
	isGenuine := false
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.", id, timestamp)
		mac.Write(body)
		wanted := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		for _, signature := range given[:min(len(given), maxSignatures)] {
			isGenuine = hmac.Equal(wanted, []byte(signature)) || isGenuine
		}
	}
	if !isGenuine {
		return fmt.Errorf("%w: no signature matches a secret", ErrRefused)
	}
	return nil
}

func keysOf(secrets []string) ([][]byte, error) {
	if len(secrets) == 0 {
		return nil, errors.New("at least one signing secret is needed")
	}
	keys := make([][]byte, len(secrets))
	for i, text := range secrets {
		keys[i] = []byte(text)
		if coded, isCoded := strings.CutPrefix(text, "whsec_"); isCoded {
			key, err := base64.StdEncoding.DecodeString(coded)
			if err != nil {
				return nil, errors.New("what follows whsec_ in a signing secret must be base64")
			}
			keys[i] = key
		}
		if len(keys[i]) == 0 {
			return nil, errors.New("a signing secret must not be empty")
		}
	}
	return keys, nil
}

// A Callback is where the result of an attempt goes that was answered with 202. It can be stored as
// JSON, and used by another process.
type Callback struct {
	URL     string `json:"url"`
	Token   string `json:"token"`
	Attempt int64  `json:"attempt"`
}

// Succeed reports success. A repeat is harmless. The error is ErrConflict or ErrNotFound if the
// attempt is over.
func (c Callback) Succeed(ctx context.Context, result any) error {
	content, err := json.Marshal(result)
	if err != nil {
		return err
	}
	return c.report(ctx, &api.Report{Status: api.StatusSucceeded, Result: content})
}

// Fail reports the failure that err means: [Permanent], [Snooze] and [Release] as from a handler.
func (c Callback) Fail(ctx context.Context, err error) error {
	return c.report(ctx, reportOf(context.Background(), err))
}

// Heartbeat sends progress, 0 to 100, and returns whether the job was cancelled.
func (c Callback) Heartbeat(ctx context.Context, progress float64, note string) (bool, error) {
	return c.beat(ctx, api.Heartbeat{Progress: &progress, Note: optional(note)})
}

func (c Callback) beat(ctx context.Context, shown api.Heartbeat) (bool, error) {
	// One that hangs leaves time for another.
	ctx, cancel := context.WithTimeout(ctx, beatTime)
	defer cancel()
	shown.Attempt = c.Attempt
	beat, err := decode[api.Beat](c.send(ctx, "/heartbeat", shown, false))
	return beat.Cancel, err
}

func (c Callback) report(ctx context.Context, report *api.Report) error {
	report.Attempt = c.Attempt
	_, err := c.send(ctx, "", report, true)
	return err
}

func (c Callback) send(ctx context.Context, suffix string, body any, repeat bool) (*Answer, error) {
	target, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	transport := &transport{
		base: target.Scheme + "://" + target.Host, timeout: 30 * time.Second, repeats: 1000,
		repeatTime: time.Minute, http: callbackHTTP,
	}
	return transport.request(ctx, Request{
		Method: "POST", Path: target.EscapedPath() + suffix, Body: body, Repeatable: repeat,
		Header: http.Header{"Authorization": {"Bearer " + c.Token}},
	})
}

var callbackHTTP = &http.Client{CheckRedirect: noRedirect}

// A PushJob is the job of a pushed attempt. It has a Callback in addition.
type PushJob struct {
	*Attempt
	// Callback is where a later result goes.
	Callback Callback
	// Request is the request's header, with the headers of the job among it.
	Request http.Header
}

// PushOptions are the options of push handlers.
type PushOptions struct {
	// Secrets are those of the types' signing_secret; two while one is replaced. Without any,
	// Unsigned must be set.
	Secrets []string
	// Unsigned accepts requests without a signature: only behind another check of the caller.
	Unsigned bool
	// Tolerance is for the time of a signature (default five minutes).
	Tolerance time.Duration
	// MaxBodyBytes bounds a request (default 8 MiB).
	MaxBodyBytes int64
	// Clock replaces time.Now; a test passes that of its development server.
	Clock func() time.Time
}

// Push has the handlers of pushed types. It is an [http.Handler], which checks the signature of
// every request.
type Push struct {
	options  PushOptions
	handlers map[string]pushHandler
	running  sync.WaitGroup
}

type pushHandler struct {
	run        func(ctx context.Context, job *PushJob) (any, error)
	background bool
}

// NewPush returns an [http.Handler] without handlers; add them with [HandlePush]. It fails if a
// secret cannot be used.
func NewPush(options PushOptions) (*Push, error) {
	if !options.Unsigned {
		if _, err := keysOf(options.Secrets); err != nil {
			return nil, err
		}
	}
	options.MaxBodyBytes = or(options.MaxBodyBytes, maxBodyBytes)
	if options.Clock == nil {
		options.Clock = time.Now
	}
	return &Push{options: options, handlers: map[string]pushHandler{}}, nil
}

// HandlePush registers the handler of a job type, before the first request. It replaces an earlier
// one. A handler that returns ErrLater answers 202. With background the answer is 202 at once, and
// the function goes on and reports when it has ended: for work that takes longer than a request
// should.
func HandlePush[T any](
	push *Push, jobType string, background bool,
	run func(ctx context.Context, data T, job *PushJob) (any, error),
) {
	push.handlers[jobType] = pushHandler{background: background, run: func(ctx context.Context, job *PushJob) (any, error) {
		return typed(func(ctx context.Context, data T, _ *Attempt) (any, error) {
			return run(ctx, data, job)
		})(ctx, job.Attempt)
	}}
}

// Wait returns when no handler runs in the background.
func (p *Push) Wait() { p.running.Wait() }

// ServeHTTP answers a push.
func (p *Push) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		refuse(w, http.StatusMethodNotAllowed, "a push is a POST")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.options.MaxBodyBytes))
	if err != nil {
		refuse(w, http.StatusRequestEntityTooLarge, err.Error())
		return
	}
	if !p.options.Unsigned {
		now := p.options.Clock()
		if err := Verify(p.options.Secrets, r.Header, body, now, p.options.Tolerance); err != nil {
			refuse(w, http.StatusUnauthorized, err.Error())
			return
		}
	}
	var pushed api.PushRequest
	if err := json.Unmarshal(body, &pushed); err != nil || pushed.ID == "" {
		refuse(w, http.StatusBadRequest, "the body is not a push in JSON")
		return
	}
	handler, isKnown := p.handlers[pushed.Type]
	if !isKnown {
		refuse(w, http.StatusNotFound, "no handler for the type "+pushed.Type)
		return
	}
	job := pushJobOf(&pushed, r.Header)
	run := func(ctx context.Context, _ *Attempt) (any, error) { return handler.run(ctx, job) }
	if handler.background {
		p.running.Add(1)
		go func() {
			defer p.running.Done()
			runInBackground(context.WithoutCancel(r.Context()), run, job)
		}()
		w.WriteHeader(http.StatusAccepted)
		return
	}
	report, err := perform(r.Context(), run, job.Attempt)
	if job.hasChanges() {
		_, _ = job.Callback.beat(r.Context(), job.take())
	}
	if errors.Is(err, ErrLater) {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	answer(w, report)
}

func pushJobOf(pushed *api.PushRequest, header http.Header) *PushJob {
	headers := map[string]string{}
	for name, value := range pushed.Headers {
		headers[name] = value
	}
	for _, name := range []string{"traceparent", "tracestate"} {
		if value := header.Get(name); value != "" {
			headers[name] = value
		}
	}
	job := &api.Job{
		ID: pushed.ID, Type: pushed.Type, MaxAttempts: pushed.MaxAttempts, Data: pushed.Data,
		Attributes: pushed.Attributes, Checkpoint: pushed.Checkpoint, Headers: headers,
	}
	return &PushJob{
		Attempt:  NewAttempt(job, pushed.Attempt),
		Callback: Callback{URL: pushed.Callback.URL, Token: pushed.Callback.Token, Attempt: pushed.Attempt},
		Request:  header,
	}
}

func runInBackground(ctx context.Context, run handlerFunc, job *PushJob) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended, beating := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(beating)
		keepBeating(context.WithoutCancel(ctx), job, ended, cancel)
	}()
	report, err := perform(ctx, run, job.Attempt)
	close(ended)
	// A heartbeat that came after the report would be refused, and its lines lost.
	select {
	case <-beating:
	case <-time.After(maxBeatWait):
	}
	if err != nil {
		return
	}
	job.complete(report)
	// A report that is refused, or not answered for a minute, is dropped: the attempt is over.
	_ = job.Callback.report(context.WithoutCancel(ctx), report)
}

func keepBeating(ctx context.Context, job *PushJob, ended chan struct{}, cancel context.CancelCauseFunc) {
	last := time.Now()
	next := last.Add(beatTime)
	for {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ended:
			timer.Stop()
			return
		case <-job.changed:
			timer.Stop()
			if due := last.Add(flushTime); due.Before(next) {
				next = due
			}
			continue
		case <-timer.C:
		}
		last = time.Now()
		next = last.Add(beatTime)
		shown := job.take()
		isCancelled, err := job.Callback.beat(ctx, shown)
		switch {
		case isCancelled:
			cancel(ErrCancelled)
		case Retryable(err):
			job.putBack(shown)
			next = last.Add(flushTime)
		case errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict):
			cancel(ErrLeaseLost)
			return
		}
	}
}

// answer sends the answer that means what a report does.
func answer(w http.ResponseWriter, report *api.Report) {
	if report == nil {
		refuse(w, http.StatusInternalServerError, "the attempt is over")
		return
	}
	header := w.Header()
	message := ""
	if report.Message != nil {
		message = *report.Message
	}
	switch report.Status {
	case api.StatusSucceeded:
		header.Set("Content-Type", "application/json")
		_, _ = w.Write(report.Result)
	case api.StatusReleased, api.StatusSnoozed:
		header.Set("Tidegate-Status", string(report.Status))
		if wait := waitOf(report); wait != nil {
			header.Set("Retry-After", strconv.Itoa(int(math.Ceil(max(0, *wait)))))
		}
		header.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, message)
	default:
		status := http.StatusInternalServerError
		if report.Retryable != nil && !*report.Retryable {
			status = statusNotRetryable
		}
		body := map[string]any{"message": message}
		if report.Error != nil {
			body["error"] = report.Error
		}
		writeJSON(w, status, body)
	}
}

// waitOf returns the seconds until a snoozed job may start again.
func waitOf(report *api.Report) *float64 {
	if report.RunAt == nil {
		return report.DelaySeconds
	}
	at, err := time.Parse(time.RFC3339, *report.RunAt)
	if err != nil {
		return nil
	}
	return Ptr(time.Until(at).Seconds())
}

func refuse(w http.ResponseWriter, status int, why string) {
	writeJSON(w, status, map[string]string{"error": why})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	content, err := json.Marshal(body)
	if err != nil {
		status, content = http.StatusInternalServerError, []byte(`{"error":"not a JSON value"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(content)
}
