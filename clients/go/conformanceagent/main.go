// Command conformanceagent is the agent of the conformance kit: it does with this client what the
// driver requests. See clients/conformance/README.md for the requests.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	tidegate "github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/api"
	"github.com/tidegate/tidegate/clients/go/tidegatetest"
)

const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

type request struct {
	Number  int    `json:"id"`
	Op      string `json:"op"`
	Type    string
	Job     string
	Data    json.RawMessage
	Options options
	Key     string
	Jobs    []struct {
		Type    string
		Data    json.RawMessage
		Options options
	}
	Repeat      int
	Bytes       int
	Wait        float64
	State       string
	Source      string
	Event       string
	Names       int
	Secrets     json.RawMessage
	Config      map[string]map[string]tidegate.Settings
	Types       []string
	Concurrency int
	Min         int
	Auto        bool
	Name        string
	Seconds     float64
	Grace       float64
	Headers     map[string]string
	Body        string
	Background  bool
	Later       bool
	Port        int
	Result      any
}

type options struct {
	ID           string  `json:"id"`
	DelaySeconds float64 `json:"delay_seconds"`
	Priority     any
	MaxAttempts  int64 `json:"max_attempts"`
	Attributes   map[string]any
	Headers      map[string]string
}

func (o options) enqueue(key string) *tidegate.EnqueueOptions {
	found := &tidegate.EnqueueOptions{
		ID: o.ID, IdempotencyKey: key, Delay: time.Duration(o.DelaySeconds * float64(time.Second)),
		MaxAttempts: o.MaxAttempts, Attributes: o.Attributes, Headers: o.Headers,
	}
	if priority, ok := o.Priority.(float64); ok {
		found.Priority = tidegate.Ptr(int64(priority))
	}
	return found
}

type run struct {
	Job     string `json:"job"`
	Attempt int64  `json:"attempt"`
	Aborted string `json:"aborted,omitempty"`
}

var (
	client    *tidegate.Client
	mu        sync.Mutex
	runs      []*run
	callbacks []tidegate.Callback
	servers   []*http.Server
	worker    *tidegate.Worker
	ended     chan error
	held      *tidegate.Plan
)

type task struct {
	Do      string
	Value   any
	Message string
	Cause   string
	Details any
	Seconds float64
	Later   any
	Bytes   int
	Beats   bool
	Instant bool
	Type    string
	Child   string
}

// behave does what the job's data says.
func behave(ctx context.Context, data task, job *tidegate.Attempt) (any, error) {
	here := &run{Job: job.ID, Attempt: job.Number}
	mu.Lock()
	runs = append(runs, here)
	mu.Unlock()
	span := time.Duration(data.Seconds * float64(time.Second))
	switch data.Do {
	case "", "echo":
		return data.Value, nil
	case "fail":
		return nil, fmt.Errorf("%s: %w", data.Message, errors.New(data.Cause))
	case "crash":
		var nothing *task
		return nothing.Value, nil
	case "permanent":
		return nil, tidegate.Permanent(errors.New(data.Message), data.Details)
	case "snooze", "release":
		if job.Number > 1 {
			return fmt.Sprintf("after %d attempts", job.Number), nil
		}
		if data.Do == "release" {
			return nil, tidegate.Release("")
		}
		if data.Instant {
			return nil, tidegate.SnoozeUntil(time.Now().Add(span), "not yet")
		}
		return nil, tidegate.Snooze(span, "not yet")
	case "sleep":
		time.Sleep(span)
		return "slept", nil
	case "until_aborted":
		if job.Number > 1 {
			return data.Later, nil
		}
		for ctx.Err() == nil {
			if data.Beats {
				job.Progress(1, "")
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
		mu.Lock()
		here.Aborted = strings.TrimPrefix(context.Cause(ctx).Error(), "the attempt is over: ")
		mu.Unlock()
		return nil, ctx.Err()
	case "show":
		job.Progress(40, "half")
		job.Log(api.LogLevelWarn, "printed", map[string]any{"pages": 3})
		time.Sleep(span)
		job.Log(api.LogLevelInfo, "done", nil)
		return "shown", nil
	case "checkpoint":
		var stored any
		if isStored, err := job.Checkpoint(&stored); isStored || err != nil {
			return stored, err
		}
		return nil, errors.Join(job.SaveCheckpoint(map[string]int{"page": 40}), errors.New("again"))
	case "large":
		return strings.Repeat("x", data.Bytes), nil
	case "trace":
		_, err := client.Enqueue(ctx, data.Type, nil, &tidegate.EnqueueOptions{ID: data.Child})
		return job.Traceparent(), err
	}
	return nil, tidegate.Permanent(errors.New("no behaviour "+data.Do), nil)
}

func configOf(r *request) (*tidegate.Config, error) {
	config := &tidegate.Config{}
	var errs []error
	for name, settings := range r.Config["queues"] {
		errs = append(errs, config.Queue(name, settings))
	}
	for name, settings := range r.Config["job_types"] {
		errs = append(errs, config.JobType(name, settings))
	}
	for name, settings := range r.Config["schedules"] {
		errs = append(errs, config.Schedule(name, settings))
	}
	for name, settings := range r.Config["triggers"] {
		errs = append(errs, config.Trigger(name, settings))
	}
	return config, errors.Join(errs...)
}

func shown(plan *tidegate.Plan, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	steps := []any{}
	for _, step := range plan.Steps {
		fields := []string{}
		for _, difference := range step.Differences {
			fields = append(fields, difference.Field)
		}
		steps = append(steps, map[string]any{
			"action": step.Action, "kind": step.Kind, "name": step.Name, "fields": fields,
		})
	}
	return map[string]any{"text": plan.String(), "steps": steps}, nil
}

func jobOf(job *tidegate.Job, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"id": job.ID, "type": job.Type, "state": job.State, "phase": job.Phase, "is_new": job.IsNew,
	}, nil
}

func workerOf(r *request) *tidegate.Worker {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	worker = tidegate.NewWorker(client, tidegate.WorkerOptions{
		Name: r.Name, Wait: 10 * time.Second, Logger: logger,
		Grace: time.Duration(r.Grace * float64(time.Second)),
	})
	options := tidegate.HandlerOptions{Concurrency: r.Concurrency, Min: r.Min, Auto: r.Auto}
	tidegate.HandleTypes(worker, r.Types, options, behave)
	return worker
}

func secretsOf(r *request) []string {
	var several []string
	var one string
	if json.Unmarshal(r.Secrets, &several) != nil && json.Unmarshal(r.Secrets, &one) == nil {
		several = []string{one}
	}
	return several
}

func pushStart(r *request) (any, error) {
	push, err := tidegate.NewPush(tidegate.PushOptions{Secrets: secretsOf(r)})
	if err != nil {
		return nil, err
	}
	for _, name := range r.Types {
		tidegate.HandlePush(push, name, r.Background, func(ctx context.Context, data task, job *tidegate.PushJob) (any, error) {
			if r.Later {
				mu.Lock()
				callbacks = append(callbacks, job.Callback)
				mu.Unlock()
				return nil, tidegate.ErrLater
			}
			return behave(ctx, data, job.Attempt)
		})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: push, ReadHeaderTimeout: 10 * time.Second}
	servers = append(servers, server)
	go func() { _ = server.Serve(listener) }()
	return map[string]int{"port": listener.Addr().(*net.TCPAddr).Port}, nil
}

func verify(r *request) (any, error) {
	header := http.Header{}
	for name, value := range r.Headers {
		header.Set(name, value)
	}
	err := tidegate.Verify(secretsOf(r), header, []byte(r.Body), time.Now(), 0)
	if errors.Is(err, tidegate.ErrRefused) {
		return false, nil
	}
	return true, err
}

// kitT is the test of the kit: it runs outside of the test tool.
type kitT struct{ cleanups []func() }

type fatal struct{ message string }

func (*kitT) Helper()                           {}
func (*kitT) Fatalf(format string, args ...any) { panic(fatal{fmt.Sprintf(format, args...)}) }
func (t *kitT) Cleanup(f func())                { t.cleanups = append(t.cleanups, f) }

// kit uses the test kit as an application's test does.
func kit() (result any, err error) {
	t := &kitT{}
	defer func() {
		for _, cleanup := range slices.Backward(t.cleanups) {
			cleanup()
		}
	}()
	server := tidegatetest.Start(t)
	own := tidegate.NewWorker(server.Client, tidegate.WorkerOptions{})
	remind := func(_ context.Context, to string, job *tidegate.Attempt) (any, error) {
		if to == "bob" && job.Number == 1 {
			return nil, errors.New("no answer")
		}
		return fmt.Sprintf("%s %d", to, job.Number), nil
	}
	retry := api.RetryExponential{Strategy: "exponential", Config: &api.Backoff{BaseSeconds: tidegate.Ptr(5.0)}}
	tidegate.Handle(own, "reminder", tidegate.HandlerOptions{Config: api.TypeConfig{Retry: retry}}, remind)
	ctx := context.Background()
	began := server.Freeze()
	server.Apply(own)
	week := 7 * 24 * time.Hour
	for to, priority := range map[string]int64{"ann": 7, "bob": 0} {
		options := &tidegate.EnqueueOptions{Delay: week, Priority: &priority}
		if _, err := server.Client.Enqueue(ctx, "reminder", to, options); err != nil {
			return nil, err
		}
	}
	enqueued := server.AssertEnqueued("reminder", 1, tidegate.Settings{"data": "ann", "priority": 7})
	statuses := func() []string {
		found := []string{}
		for _, run := range server.Drain(own) {
			found = append(found, string(run.Status))
		}
		return found
	}
	before := statuses()
	moved := server.Advance(week).Sub(began)
	after := statuses()
	slices.Sort(after)
	slices.Reverse(after)
	server.Advance(time.Minute)
	retried := statuses()
	inPlace, err := tidegatetest.RunInPlace(ctx, remind, "ann", &api.Job{Attempt: 2})
	if err != nil {
		return nil, err
	}
	note := func(ctx context.Context, _ any, job *tidegate.Attempt) (any, error) {
		var stored struct{ Page int }
		if _, err := job.Checkpoint(&stored); err != nil {
			return nil, err
		}
		options := &tidegate.EnqueueOptions{ID: "noted", Delay: week}
		_, err := server.Client.Enqueue(ctx, "reminder", "eve", options)
		return map[string]any{"attempt": job.Number, "page": stored.Page}, err
	}
	headers := map[string]string{"traceparent": trace}
	given := &api.Job{Attempt: 3, Headers: headers, Checkpoint: json.RawMessage(`{"page": 4}`)}
	noted, err := tidegatetest.RunInPlace(ctx, note, nil, given)
	server.AssertEnqueued("reminder", 1, tidegate.Settings{"headers": headers})
	return map[string]any{
		"enqueued": len(enqueued), "missing": missing(server), "before": before, "after": after,
		"retried": retried, "moved_seconds": moved.Seconds(), "in_place": inPlace, "noted": noted,
	}, err
}

func missing(server *tidegatetest.Server) (message string) {
	defer func() {
		if failed, ok := recover().(fatal); ok {
			message = failed.message
		}
	}()
	server.AssertEnqueued("reminder", -1, tidegate.Settings{"data": "ann", "priority": 6})
	return "nothing"
}

func count(r *request, most *int64) (int, error) {
	filters := url.Values{"type": {r.Type}, "limit": {"1000"}}
	if r.State != "" {
		filters.Set("state", r.State)
	}
	found := 0
	for job, err := range client.Jobs(context.Background(), filters) {
		if err != nil {
			return 0, err
		}
		*most = max(*most, job.Attempt)
		found++
	}
	return found, nil
}

func perform(r *request) (any, error) {
	ctx := context.Background()
	wait := time.Duration(r.Wait * float64(time.Second))
	var most int64
	switch r.Op {
	case "enqueue":
		if text, isText := r.Options.Priority.(string); isText {
			// The types of Go do not let this through: send it by hand.
			body := map[string]any{"type": r.Type, "data": nil, "priority": text}
			_, err := client.Do(ctx, tidegate.Request{Method: "POST", Path: "/v1/jobs", Body: body})
			return nil, err
		}
		return jobOf(client.Enqueue(ctx, r.Type, r.Data, r.Options.enqueue(r.Key)))
	case "enqueue_many":
		var jobs []tidegate.NewJob
		for _, job := range r.Jobs {
			jobs = append(jobs, tidegate.NewJob{Type: job.Type, Data: job.Data, Options: job.Options.enqueue("")})
		}
		var data any = r.Data
		if r.Bytes > 0 {
			data = strings.Repeat("x", r.Bytes)
		}
		for range r.Repeat {
			jobs = append(jobs, tidegate.NewJob{Type: r.Type, Data: data})
		}
		items, err := client.EnqueueMany(ctx, jobs, r.Key)
		found := []any{}
		for _, item := range items {
			var problem *tidegate.ProblemError
			if errors.As(item.Err, &problem) {
				found = append(found, map[string]string{"code": problem.Code()})
			} else {
				job, _ := jobOf(item.Job, nil)
				found = append(found, job)
			}
		}
		return found, err
	case "job":
		return jobOf(client.Job(ctx, r.Job))
	case "result":
		var result any
		err := client.Result(ctx, r.Type, r.Job, wait, &result)
		return result, err
	case "cancel":
		return jobOf(client.Cancel(ctx, r.Type, r.Job, false))
	case "replay":
		return jobOf(client.Replay(ctx, r.Type, r.Job, nil))
	case "count":
		return count(r, &most)
	case "attempts":
		_, err := count(r, &most)
		return map[string]int64{"most": most}, err
	case "log":
		return client.Log(ctx, r.Type, r.Job)
	case "send_event":
		return client.SendEvent(ctx, tidegate.Event{ID: r.Event, Type: r.Type, Source: r.Source, Data: r.Data})
	case "stream":
		var names []string
		for change, err := range client.Stream(ctx, tidegate.StreamOptions{Type: r.Type}) {
			if err != nil {
				return nil, err
			}
			if names = append(names, change.Name); len(names) == r.Names {
				break
			}
		}
		return names, nil
	case "plan", "plan_hold", "apply":
		config, err := configOf(r)
		if err != nil {
			return nil, err
		}
		secrets := true
		_ = json.Unmarshal(r.Secrets, &secrets)
		if r.Op == "apply" {
			return shown(client.Apply(ctx, config, secrets))
		}
		held, err = client.Plan(ctx, config, secrets)
		return shown(held, err)
	case "plan_apply":
		return nil, held.Apply(ctx)
	case "worker_start":
		started := workerOf(r)
		ended = make(chan error, 1)
		go func() { ended <- started.Run(ctx) }()
		return nil, nil
	case "worker_stop":
		worker.Stop()
		return nil, <-ended
	case "worker_wait":
		return nil, <-ended
	case "runs":
		mu.Lock()
		defer mu.Unlock()
		return append([]*run{}, runs...), nil
	case "runs_count":
		mu.Lock()
		defer mu.Unlock()
		return len(runs), nil
	case "sleep":
		time.Sleep(time.Duration(r.Seconds * float64(time.Second)))
		return nil, nil
	case "verify":
		return verify(r)
	case "push_start":
		return pushStart(r)
	case "push_stop":
		for _, server := range servers {
			_ = server.Close()
		}
		return nil, nil
	case "push_forged":
		body := bytes.NewReader([]byte(`{"id": "x", "type": "resize"}`))
		response, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/", r.Port), "application/json", body)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		return response.StatusCode, nil
	case "callbacks":
		mu.Lock()
		defer mu.Unlock()
		return append([]tidegate.Callback{}, callbacks...), nil
	case "callback_succeed":
		content, err := json.Marshal(callbacks[0])
		var stored tidegate.Callback
		if err = errors.Join(err, json.Unmarshal(content, &stored)); err != nil {
			return nil, err
		}
		return nil, stored.Succeed(ctx, r.Result)
	case "kit":
		return kit()
	}
	return nil, fmt.Errorf("no such request: %s", r.Op)
}

var kinds = map[error]string{
	tidegate.ErrJobFailed: "job_failed", tidegate.ErrWaitTimeout: "wait_timeout",
	tidegate.ErrInvalidRequest: "invalid_request", tidegate.ErrUnauthorized: "unauthorized",
	tidegate.ErrForbidden: "forbidden", tidegate.ErrNotFound: "not_found",
	tidegate.ErrConflict: "conflict", tidegate.ErrPreconditionFailed: "precondition_failed",
	tidegate.ErrUnavailable: "unavailable", tidegate.ErrServerFault: "server_fault",
	tidegate.ErrUnreachable: "unreachable",
}

func errorOf(err error) map[string]any {
	found := map[string]any{"kind": "", "text": err.Error(), "retryable": tidegate.Retryable(err)}
	if after, isGiven := tidegate.RetryAfter(err); isGiven {
		found["retry_after"] = after.Seconds()
	}
	for kind, name := range kinds {
		if errors.Is(err, kind) {
			found["kind"] = name
		}
	}
	var problem *tidegate.ProblemError
	if errors.As(err, &problem) {
		found["code"], found["status"], found["state"] = problem.Code(), problem.Status, problem.State()
		found["field"], found["reason"] = problem.Problem.Field, problem.Reason()
		found["message"] = problem.JobMessage()
	}
	return found
}

func answer(r *request) {
	reply := map[string]any{"id": r.Number}
	if ok, err := perform(r); err != nil {
		reply["error"] = errorOf(err)
	} else {
		reply["ok"] = ok
	}
	content, err := json.Marshal(reply)
	if err != nil {
		panic(err)
	}
	mu.Lock()
	defer mu.Unlock()
	fmt.Printf("%s\n", content)
}

func main() {
	var err error
	options := tidegate.ClientOptions{}
	if seconds := os.Getenv("CONFORMANCE_CLIENT_TIMEOUT"); seconds != "" {
		if options.Timeout, err = time.ParseDuration(seconds + "s"); err != nil {
			panic(err)
		}
	}
	if client, err = tidegate.NewClient(options); err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		r := &request{}
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			panic(err)
		}
		if r.Op == "worker_run" {
			started := workerOf(r)
			go func() {
				if err := started.Run(context.Background()); err != nil {
					panic(err)
				}
				os.Exit(0)
			}()
			continue
		}
		go answer(r)
	}
}
