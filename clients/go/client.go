package tidegate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/clients/go/api"
)

const (
	// A batch within these bounds is sent without reading the server's.
	smallBatch      = 1000
	smallBatchBytes = 1 << 20
	// What a batch has in addition to its jobs.
	batchFrameBytes = len(`{"jobs":[]}`)
	// The longest wait of one request; a longer wait is several of them.
	maxWait = time.Minute
)

// Forever is a wait without end; the context ends it.
const Forever time.Duration = -1

// A Client is a client of one server. Goroutines may share it.
type Client struct {
	transport *transport
	limits    atomic.Pointer[api.Limits]
}

// NewClient returns a client. It fails if the URL is not one of HTTP.
func NewClient(options ClientOptions) (*Client, error) {
	transport, err := newTransport(options)
	if err != nil {
		return nil, err
	}
	return &Client{transport: transport}, nil
}

// URL returns the URL of the server.
func (c *Client) URL() string { return c.transport.base }

// Do sends any request of the API. It repeats one that is harmless to repeat.
func (c *Client) Do(ctx context.Context, request Request) (*Answer, error) {
	return c.transport.request(ctx, request)
}

// EnqueueOptions are the options of a job; the zero value of a field is the default of its type.
type EnqueueOptions struct {
	// ID makes the enqueue repeatable: 1 to 64 of A-Z a-z 0-9 _ . : -
	ID string
	// IdempotencyKey makes it repeatable, too, 1 to 255 characters (default: a random one).
	IdempotencyKey string
	// RunAt is the earliest start; Delay is the same as a span from now.
	RunAt time.Time
	Delay time.Duration
	// ExpiresAt: it never starts after this instant.
	ExpiresAt      time.Time
	CorrelationKey string
	Priority       *int64
	Weight         *int64
	Critical       bool
	Windows        []api.Window
	Timeout        time.Duration
	Deadline       time.Duration
	MaxAttempts    int64
	// Retry is an api.RetryExponential or an api.RetryPlugin.
	Retry      any
	Unique     *api.Unique
	Attributes map[string]any
	// KeepResult is "none", "once", or an api.KeepResultSeconds.
	KeepResult  any
	CallbackURL string
	Headers     map[string]string
}

func (o *EnqueueOptions) body(jobType string, data any) (*api.NewJob, error) {
	content, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("the data of the job is not a JSON value: %w", err)
	}
	body := &api.NewJob{Type: &jobType, Data: content}
	if o == nil {
		return body, nil
	}
	body.ID, body.CorrelationKey = optional(o.ID), optional(o.CorrelationKey)
	body.CallbackURL, body.Critical = optional(o.CallbackURL), optional(o.Critical)
	body.RunAt, body.ExpiresAt = instant(o.RunAt), instant(o.ExpiresAt)
	body.DelaySeconds, body.TimeoutSeconds = seconds(o.Delay), seconds(o.Timeout)
	body.DeadlineSeconds, body.MaxAttempts = seconds(o.Deadline), optional(o.MaxAttempts)
	body.Priority, body.Weight, body.Windows = o.Priority, o.Weight, o.Windows
	body.Retry, body.Unique, body.KeepResult = o.Retry, o.Unique, o.KeepResult
	body.Attributes, body.Headers = o.Attributes, o.Headers
	return body, nil
}

func optional[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

func instant(at time.Time) *string {
	if at.IsZero() {
		return nil
	}
	return Ptr(at.UTC().Format("2006-01-02T15:04:05.000Z"))
}

func seconds(span time.Duration) *float64 {
	if span == 0 {
		return nil
	}
	return Ptr(span.Seconds())
}

func randomKey() string {
	var key [16]byte
	// It never fails (crypto/rand, Go 1.24), and an earlier failure would only cost uniqueness.
	_, _ = rand.Read(key[:])
	return hex.EncodeToString(key[:])
}

// A Job is one that was enqueued or read: its fields as they were then, and what may be done next.
type Job struct {
	api.Job
	// IsNew says whether the enqueue made it; false if it existed, by its id, key or Unique.
	IsNew  bool
	client *Client
}

func (c *Client) job(answer *Answer, err error) (*Job, error) {
	raw, err := decode[api.Job](answer, err)
	if err != nil {
		return nil, err
	}
	return &Job{Job: raw, IsNew: answer.Status == http.StatusCreated, client: c}, nil
}

// Result reads its result into a pointer; see [Client.Result].
func (j *Job) Result(ctx context.Context, wait time.Duration, into any) error {
	return j.client.Result(ctx, j.Type, j.ID, wait, into)
}

// Refresh returns it as it is now.
func (j *Job) Refresh(ctx context.Context) (*Job, error) { return j.client.Job(ctx, j.ID) }

// Cancel cancels it; see [Client.Cancel].
func (j *Job) Cancel(ctx context.Context) (*Job, error) {
	return j.client.Cancel(ctx, j.Type, j.ID, false)
}

// Enqueue enqueues a job. Options may be nil.
//
// The call is repeated safely: by ID if it is given, else by IdempotencyKey, else by a random key.
// The error is ErrInvalidRequest for a wrong option, ErrNotFound for an unknown type, ErrConflict if
// another request has used the id or the key.
func (c *Client) Enqueue(ctx context.Context, jobType string, data any, options *EnqueueOptions) (*Job, error) {
	body, err := options.body(jobType, data)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	if options != nil && options.IdempotencyKey != "" {
		header.Set("Idempotency-Key", options.IdempotencyKey)
	} else if body.ID == nil {
		header.Set("Idempotency-Key", randomKey())
	}
	return c.job(c.Do(ctx, Request{
		Method: "POST", Path: "/v1/jobs", Body: body, Header: header, Repeatable: true,
	}))
}

// A JobType is a job type whose data is a T.
type JobType[T any] struct {
	Name string
}

// NewJobType returns the job type with a name.
func NewJobType[T any](name string) JobType[T] { return JobType[T]{Name: name} }

// Enqueue enqueues a job of the type; see [Client.Enqueue].
func (t JobType[T]) Enqueue(ctx context.Context, client *Client, data T, options *EnqueueOptions) (*Job, error) {
	return client.Enqueue(ctx, t.Name, data, options)
}

// A NewJob is a job of a batch.
type NewJob struct {
	Type    string
	Data    any
	Options *EnqueueOptions
}

// A BatchItem is the outcome of one job of a batch: either Job or Err.
type BatchItem struct {
	Job *Job
	Err error
}

// EnqueueMany enqueues jobs, as many with each request as the server takes, and returns one outcome
// per job, in order. A refused job does not affect the others. With a key (it may be empty) the call
// can be repeated with the same list.
func (c *Client) EnqueueMany(ctx context.Context, jobs []NewJob, key string) ([]BatchItem, error) {
	if key == "" {
		key = randomKey()
	}
	items := make([]BatchItem, 0, len(jobs))
	bodies := make([]json.RawMessage, len(jobs))
	for i, job := range jobs {
		body, err := job.Options.body(job.Type, job.Data)
		if err != nil {
			return items, err
		}
		if bodies[i], err = json.Marshal(body); err != nil {
			return items, fmt.Errorf("the job is not a JSON value: %w", err)
		}
	}
	parts, err := c.batches(ctx, bodies)
	if err != nil {
		return items, err
	}
	for number, part := range parts {
		header := http.Header{"Idempotency-Key": {fmt.Sprintf("%s.%d", key, number)}}
		view, err := decode[api.BatchView](c.Do(ctx, Request{
			Method: "POST", Path: "/v1/jobs/batch", Body: map[string]any{"jobs": part}, Header: header,
		}))
		if err != nil {
			return items, err
		}
		for _, result := range view.Results {
			item := BatchItem{}
			if result.Job != nil {
				item.Job = &Job{Job: *result.Job, IsNew: result.Status == 201, client: c}
			}
			if result.Error != nil {
				item.Err = &ProblemError{Status: int(result.Status), Problem: *result.Error}
			}
			items = append(items, item)
		}
	}
	return items, nil
}

// batches divides jobs into parts that each fit into one request.
func (c *Client) batches(ctx context.Context, jobs []json.RawMessage) ([][]json.RawMessage, error) {
	most, mostBytes, all := smallBatch, smallBatchBytes, 0
	for _, job := range jobs {
		all += len(job) + 1
	}
	if len(jobs) > most || all > mostBytes {
		limits, err := c.Limits(ctx)
		if err != nil {
			return nil, err
		}
		most, mostBytes = int(limits.BatchJobs), int(limits.BatchRequestBytes)
	}
	var parts [][]json.RawMessage
	start, size := 0, batchFrameBytes
	for i, job := range jobs {
		if i > start && (i-start == most || size+len(job)+1 > mostBytes) {
			parts = append(parts, jobs[start:i])
			start, size = i, batchFrameBytes
		}
		size += len(job) + 1
	}
	if start < len(jobs) {
		parts = append(parts, jobs[start:])
	}
	return parts, nil
}

// Limits returns what the server accepts in one request. It is read once.
func (c *Client) Limits(ctx context.Context) (*api.Limits, error) {
	if limits := c.limits.Load(); limits != nil {
		return limits, nil
	}
	limits, err := decode[api.Limits](c.Do(ctx, Request{Method: "GET", Path: "/v1/limits"}))
	if err != nil {
		return nil, err
	}
	c.limits.Store(&limits)
	return &limits, nil
}

// Job returns a job by its id. The error is ErrNotFound if there is none.
func (c *Client) Job(ctx context.Context, id string) (*Job, error) {
	return c.job(c.Do(ctx, Request{Method: "GET", Path: path("jobs", id)}))
}

// Jobs yields the jobs that the filters of GET /v1/jobs match, page by page. It ends after an error.
func (c *Client) Jobs(ctx context.Context, filters url.Values) iter.Seq2[*Job, error] {
	return func(yield func(*Job, error) bool) {
		for raw, err := range Pages[api.Job](ctx, c, "/v1/jobs", "jobs", filters) {
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(&Job{Job: raw, client: c}, nil) {
				return
			}
		}
	}
}

// Pages yields the items of every page of a list of the API. It ends after an error.
func Pages[T any](ctx context.Context, c *Client, path, items string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		asked := url.Values{}
		for name, values := range query {
			asked[name] = values
		}
		for {
			page, err := decode[map[string]json.RawMessage](
				c.Do(ctx, Request{Method: "GET", Path: path, Query: asked}))
			var found []T
			if err == nil {
				err = json.Unmarshal(page[items], &found)
			}
			if err != nil {
				yield(none, err)
				return
			}
			for _, item := range found {
				if !yield(item, nil) {
					return
				}
			}
			var cursor string
			if next, ok := page["next_cursor"]; !ok || json.Unmarshal(next, &cursor) != nil || cursor == "" {
				return
			}
			asked.Set("cursor", cursor)
		}
	}
}

// Result reads the result of a job into a pointer (or nil), after at most wait; see [Forever].
//
// The error is ErrJobFailed if it ended otherwise, and ErrWaitTimeout if it did not end within the
// wait.
func (c *Client) Result(ctx context.Context, jobType, id string, wait time.Duration, into any) error {
	until := time.Now().Add(wait)
	for {
		part := maxWait
		if wait >= 0 {
			part = min(maxWait, max(0, time.Until(until)))
		}
		query := url.Values{}
		if part > 0 {
			query.Set("wait", strconv.FormatFloat(part.Seconds(), 'f', 3, 64))
		}
		answer, err := c.Do(ctx, Request{
			Method: "GET", Path: path("jobs", jobType, id, "result"), Query: query, Wait: part,
		})
		isOver := wait >= 0 && !time.Now().Before(until)
		if errors.Is(err, ErrWaitTimeout) && !isOver && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return err
		}
		switch state := answer.Header.Get("Tidegate-State"); state {
		case "succeeded":
			if into == nil || len(answer.Body) == 0 {
				return nil
			}
			return json.Unmarshal(answer.Body, into)
		case "":
			return fmt.Errorf("%w: it has no header Tidegate-State", ErrUnexpectedAnswer)
		default:
			if !isOver {
				continue
			}
			return &ProblemError{Status: http.StatusRequestTimeout, Problem: api.Problem{
				Code: "wait_timeout", Title: "Wait timeout",
				Detail: fmt.Sprintf("the job is %s, and did not end within %s", state, wait),
			}}
		}
	}
}

// Cancel cancels a job. A running one ends when its worker reports; force ends it at once.
func (c *Client) Cancel(ctx context.Context, jobType, id string, force bool) (*Job, error) {
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	return c.job(c.Do(ctx, Request{Method: "DELETE", Path: path("jobs", jobType, id), Query: query}))
}

// Replay runs an ended job again, as a new job. A second call returns the same new job. Changes may
// be nil; with Again another job is made.
func (c *Client) Replay(ctx context.Context, jobType, id string, changes *api.ReplayWith) (*Job, error) {
	if changes == nil {
		changes = &api.ReplayWith{}
	}
	header := http.Header{}
	if changes.Again != nil && *changes.Again {
		header.Set("Idempotency-Key", randomKey())
	}
	return c.job(c.Do(ctx, Request{
		Method: "POST", Path: path("jobs", jobType, id, "replay"), Body: changes, Header: header,
		Repeatable: true,
	}))
}

// Change changes a scheduled job; null sets what an enqueue without the field has.
func (c *Client) Change(ctx context.Context, jobType, id string, changes Settings) (*Job, error) {
	return c.job(c.Do(ctx, Request{
		Method: "PATCH", Path: path("jobs", jobType, id), Body: changes, Repeatable: true,
	}))
}

// Explain returns why a job waits.
func (c *Client) Explain(ctx context.Context, jobType, id string) (api.Explanation, error) {
	return decode[api.Explanation](c.Do(ctx, Request{
		Method: "GET", Path: path("jobs", jobType, id, "explain"),
	}))
}

// Log returns the log lines of a job that are kept, oldest first.
func (c *Client) Log(ctx context.Context, jobType, id string) ([]api.LogLine, error) {
	var lines []api.LogLine
	query := url.Values{}
	for {
		page, err := decode[api.LogPage](c.Do(ctx, Request{
			Method: "GET", Path: path("jobs", jobType, id, "log"), Query: query,
		}))
		if err != nil {
			return lines, err
		}
		lines = append(lines, page.Lines...)
		// A page of a job that has not ended always names a next one.
		if len(page.Lines) == 0 || page.NextCursor == nil {
			return lines, nil
		}
		query.Set("cursor", *page.NextCursor)
	}
}

// An Event is a CloudEvent. Without an ID it gets a random one.
type Event struct {
	ID, Source, Type, Subject string
	Time                      time.Time
	Data                      any
	Extensions                map[string]any
}

// SendEvent sends an event, and returns what each trigger did about it. Repeats of this client send
// the same id, so that a lost answer makes no second job.
func (c *Client) SendEvent(ctx context.Context, event Event) (api.Ingested, error) {
	body := map[string]any{}
	for name, value := range event.Extensions {
		body[name] = value
	}
	body["specversion"], body["source"], body["type"] = "1.0", event.Source, event.Type
	body["id"] = or(event.ID, randomKey())
	if event.Subject != "" {
		body["subject"] = event.Subject
	}
	if at := instant(event.Time); at != nil {
		body["time"] = *at
	}
	if event.Data != nil {
		body["datacontenttype"], body["data"] = "application/json", event.Data
	}
	return decode[api.Ingested](c.Do(ctx, Request{
		Method: "POST", Path: "/v1/events", Body: body, Repeatable: true,
		Header: http.Header{"Content-Type": {"application/cloudevents+json"}},
	}))
}
