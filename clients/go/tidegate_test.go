package tidegate_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	tidegate "github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/api"
	"github.com/tidegate/tidegate/clients/go/tidegatetest"
)

type letter struct {
	To    string `json:"to"`
	Pages int    `json:"pages"`
}

func runWorker(t *testing.T, worker *tidegate.Worker) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(context.Background()) }()
	t.Cleanup(func() {
		worker.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestAWorkerRunsTypedJobs(t *testing.T) {
	server, ctx := tidegatetest.Start(t), t.Context()
	worker := tidegate.NewWorker(server.Client, tidegate.WorkerOptions{Wait: 5 * time.Second})
	letters := tidegate.NewJobType[letter]("letter")
	options := tidegate.HandlerOptions{Concurrency: 3, Queue: "mail"}
	tidegate.Handle(worker, letters.Name, options,
		func(_ context.Context, data letter, job *tidegate.Attempt) (any, error) {
			job.Log(api.LogLevelDebug, "printed", map[string]any{"pages": data.Pages})
			if data.To == "nil" {
				var none *letter
				return none.To, nil
			}
			return letter{data.To, data.Pages * 2}, nil
		})
	if err := worker.Config.Queue("mail", api.QueueConfig{Concurrency: tidegate.Ptr(int64(3))}); err != nil {
		t.Fatal(err)
	}
	server.Apply(worker)
	runWorker(t, worker)
	job, err := letters.Enqueue(ctx, server.Client, letter{"ann", 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var result letter
	if err := job.Result(ctx, 10*time.Second, &result); err != nil || result != (letter{"ann", 4}) {
		t.Fatalf("%v %v", result, err)
	}
	if job.Queue != "mail" {
		t.Errorf("the job is in the queue %s", job.Queue)
	}
	wrong, err := server.Client.Enqueue(ctx, "letter", map[string]any{"to": 7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = wrong.Result(ctx, 10*time.Second, nil)
	var problem *tidegate.ProblemError
	if !errors.Is(err, tidegate.ErrJobFailed) || !errors.As(err, &problem) ||
		!strings.Contains(problem.JobMessage(), "the data cannot be read") {
		t.Errorf("%v", err)
	}
}

func TestAPanicIsAFailureWithItsStack(t *testing.T) {
	server, ctx := tidegatetest.Start(t), t.Context()
	worker := tidegate.NewWorker(server.Client, tidegate.WorkerOptions{})
	config := tidegate.Settings{"max_attempts": 1}
	tidegate.Handle(worker, "panics", tidegate.HandlerOptions{Config: config},
		func(context.Context, any, *tidegate.Attempt) (any, error) { panic("no paper") })
	server.Apply(worker)
	job, err := server.Client.Enqueue(ctx, "panics", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	runs := server.Drain(worker)
	if len(runs) != 1 || runs[0].Status != api.StatusFailed || runs[0].Message != "panic: no paper" {
		t.Errorf("%+v", runs)
	}
	if job, err = job.Refresh(ctx); err != nil || !strings.Contains(string(job.Error.Details), "tidegate_test.go") {
		t.Errorf("%s %v", job.Error.Details, err)
	}
}

func TestAWorkerWithAMistakeDoesNotStart(t *testing.T) {
	client, err := tidegate.NewClient(tidegate.ClientOptions{URL: "http://127.0.0.1:9"})
	if err != nil {
		t.Fatal(err)
	}
	run := func(context.Context, any, *tidegate.Attempt) (any, error) { return nil, nil }
	for name, add := range map[string]func(*tidegate.Worker){
		"no handler": func(*tidegate.Worker) {},
		"has a handler already": func(w *tidegate.Worker) {
			tidegate.Handle(w, "a", tidegate.HandlerOptions{}, run)
			tidegate.Handle(w, "a", tidegate.HandlerOptions{}, run)
		},
		"at least one job type": func(w *tidegate.Worker) {
			tidegate.HandleTypes(w, nil, tidegate.HandlerOptions{}, run)
		},
		"the job type b has": func(w *tidegate.Worker) {
			tidegate.HandleTypes(w, []string{"b", "b"}, tidegate.HandlerOptions{}, run)
		},
		"concurrency must be": func(w *tidegate.Worker) {
			tidegate.Handle(w, "a", tidegate.HandlerOptions{Concurrency: 1001}, run)
		},
	} {
		worker := tidegate.NewWorker(client, tidegate.WorkerOptions{})
		add(worker)
		if err := worker.Run(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAHandlerInPlaceGetsAndReturnsJSON(t *testing.T) {
	run := func(ctx context.Context, data letter, job *tidegate.Attempt) (any, error) {
		return map[string]any{"to": data.To, "number": job.Number, "trace": tidegate.Traceparent(ctx)}, nil
	}
	job := &api.Job{Attempt: 2, Headers: map[string]string{"Traceparent": "00-1-2-01"}}
	result, err := tidegatetest.RunInPlace(t.Context(), run, letter{To: "ann"}, job)
	wanted := map[string]any{"to": "ann", "number": 2.0, "trace": "00-1-2-01"}
	if err != nil || !reflect.DeepEqual(result, any(wanted)) {
		t.Errorf("%v %v", result, err)
	}
	if _, err = tidegatetest.RunInPlace(t.Context(), run, "ann", nil); err == nil ||
		!strings.Contains(err.Error(), "the data cannot be read") {
		t.Errorf("%v", err)
	}
	no := errors.New("no")
	fails := func(context.Context, any, *tidegate.Attempt) (any, error) { return nil, no }
	if _, err = tidegatetest.RunInPlace(t.Context(), fails, nil, nil); err != no {
		t.Errorf("%v", err)
	}
}

func TestErrorsSayWhetherAndWhenToRetry(t *testing.T) {
	after := 3 * time.Second
	busy := &tidegate.ProblemError{Status: 429, RetryAfter: &after}
	moved := &tidegate.ProblemError{Status: 409, Problem: api.Problem{Code: "concurrent_update"}}
	taken := &tidegate.ProblemError{Status: 409, Problem: api.Problem{Code: "id_taken"}}
	for err, wanted := range map[error]bool{
		busy: true, moved: true, taken: false, tidegate.ErrUnreachable: true, errors.New("no"): false,
	} {
		if tidegate.Retryable(fmt.Errorf("outer: %w", err)) != wanted {
			t.Errorf("%v", err)
		}
	}
	if found, isGiven := tidegate.RetryAfter(busy); !isGiven || found != after {
		t.Errorf("%v %v", found, isGiven)
	}
	if _, isGiven := tidegate.RetryAfter(taken); isGiven {
		t.Error("no wait was requested")
	}
}

func TestAPushWithoutAValidSignatureIsRefused(t *testing.T) {
	push, err := tidegate.NewPush(tidegate.PushOptions{Secrets: []string{"s"}, MaxBodyBytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	for body, status := range map[string]int{"{}": 401, "0123456789ab": 413} {
		answer := httptest.NewRecorder()
		push.ServeHTTP(answer, httptest.NewRequest("POST", "/", strings.NewReader(body)))
		if answer.Code != status {
			t.Errorf("%s: %d", body, answer.Code)
		}
	}
	for _, secrets := range [][]string{nil, {""}, {"whsec_?"}} {
		if _, err := tidegate.NewPush(tidegate.PushOptions{Secrets: secrets}); err == nil {
			t.Errorf("%q is accepted", secrets)
		}
	}
}

func TestURLsThatAreNotOnesOfHTTPAreRefused(t *testing.T) {
	for _, address := range []string{"ftp://a", "http://u:p@a", "http://a?b=c", "http://"} {
		if _, err := tidegate.NewClient(tidegate.ClientOptions{URL: address}); err == nil {
			t.Errorf("%s is accepted", address)
		}
	}
}
