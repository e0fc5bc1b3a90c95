// Package tidegatetest is a test kit on `tidegate dev`: a throw-away server whose clock a test
// freezes and moves.
//
//	server := tidegatetest.Start(t)
//	server.Freeze()
//	server.Apply(worker)
//	...
//	server.Advance(7 * 24 * time.Hour)
//	runs := server.Drain(worker)
//
// The program tidegate is that of TIDEGATE_PROGRAM, or is found in PATH.
package tidegatetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	tidegate "github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/api"
)

const (
	startTime  = 30 * time.Second
	maxDrained = 10_000
)

// T is the part of [testing.T] that the kit needs.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// A Server is one for one test run, without tokens, on this machine alone. Its methods end the test
// when the server does not do what they request.
type Server struct {
	// Client is a client of the server.
	Client *tidegate.Client
	t      T
}

// A Run is one attempt that [Server.Drain] ran.
type Run struct {
	Type, ID string
	Attempt  int64
	Data     json.RawMessage
	Status   api.Status
	Result   json.RawMessage
	// Message is why it did not succeed.
	Message string
}

// Start starts a server on a free port. It ends with the test.
func Start(t T) *Server {
	t.Helper()
	program := os.Getenv("TIDEGATE_PROGRAM")
	if program == "" {
		program = "tidegate"
	}
	command := exec.Command(program, "dev", "--listen", "127.0.0.1:0")
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "TIDEGATE_") {
			command.Env = append(command.Env, variable)
		}
	}
	output, err := command.StderrPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatalf("the server did not start: %v", err)
	}
	found := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		address := regexp.MustCompile(` on (http://\S+)`)
		lines := bufio.NewScanner(output)
		var first []string
		for lines.Scan() {
			if match := address.FindStringSubmatch(lines.Text()); match != nil {
				select {
				case found <- match[1]:
				default:
				}
			}
			first = append(first, lines.Text())[:min(len(first)+1, 50)]
		}
		select {
		case found <- "": // it ended
		default:
		}
	}()
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(10*time.Second, func() { _ = command.Process.Kill() })
		defer timer.Stop()
		<-read
		_ = command.Wait()
	})
	var address string
	select {
	case address = <-found:
	case <-time.After(startTime):
	}
	if address == "" {
		t.Fatalf("the server %s did not start", program)
	}
	client, err := tidegate.NewClient(tidegate.ClientOptions{URL: address})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &Server{Client: client, t: t}
}

// Now returns what the server's clock shows.
func (s *Server) Now() time.Time {
	s.t.Helper()
	return s.clock("GET", nil)
}

// Freeze stops the clock, and returns what it shows.
func (s *Server) Freeze() time.Time {
	s.t.Helper()
	return s.clock("POST", api.DevClockChange{Freeze: tidegate.Ptr(true)})
}

// Unfreeze lets the clock run on from what it shows.
func (s *Server) Unfreeze() time.Time {
	s.t.Helper()
	return s.clock("POST", api.DevClockChange{Freeze: tidegate.Ptr(false)})
}

// Advance moves the clock forward. What is due then happens at once. Over several due times, move it
// step by step.
func (s *Server) Advance(span time.Duration) time.Time {
	s.t.Helper()
	return s.clock("POST", api.DevClockChange{AdvanceSeconds: tidegate.Ptr(span.Seconds())})
}

// SetTime moves the clock forward to an instant.
func (s *Server) SetTime(now time.Time) time.Time {
	s.t.Helper()
	return s.clock("POST", api.DevClockChange{Set: tidegate.Ptr(now.UTC().Format(time.RFC3339Nano))})
}

func (s *Server) clock(method string, change any) time.Time {
	s.t.Helper()
	var clock api.DevClock
	s.do(tidegate.Request{Method: method, Path: "/v1/dev/clock", Body: change}, &clock)
	now, err := time.Parse(time.RFC3339, clock.Now)
	if err != nil {
		s.t.Fatalf("the clock shows %q", clock.Now)
	}
	return now
}

func (s *Server) do(request tidegate.Request, into any) {
	s.t.Helper()
	answer, err := s.Client.Do(context.Background(), request)
	if err == nil && into != nil {
		err = json.Unmarshal(answer.Body, into)
	}
	if err != nil {
		s.t.Fatalf("%s %s: %v", request.Method, request.Path, err)
	}
}

// Apply applies the configuration of workers; see [tidegate.Worker.Apply].
func (s *Server) Apply(workers ...*tidegate.Worker) {
	s.t.Helper()
	for _, worker := range workers {
		if _, err := worker.Apply(context.Background()); err != nil {
			s.t.Fatalf("%v", err)
		}
	}
}

// Jobs returns the jobs of a type, oldest first.
func (s *Server) Jobs(jobType string) []*tidegate.Job {
	s.t.Helper()
	var found []*tidegate.Job
	for listed, err := range s.Client.Jobs(context.Background(), url.Values{"type": {jobType}}) {
		var job *tidegate.Job
		if err == nil {
			// A list leaves out large data.
			job, err = s.Client.Job(context.Background(), listed.ID)
		}
		if err != nil {
			s.t.Fatalf("%v", err)
		}
		found = append(found, job)
	}
	slices.Reverse(found)
	return found
}

// AssertEnqueued ends the test unless count jobs of a type were enqueued that have the fields of wanted,
// such as data and priority; with a negative count, at least one. Of an object, what is in wanted must be
// in the job's. It returns them, oldest first. Nil matches all.
func (s *Server) AssertEnqueued(jobType string, count int, wanted tidegate.Settings) []*tidegate.Job {
	s.t.Helper()
	content, err := json.Marshal(wanted)
	if wanted == nil {
		content = []byte("{}")
	}
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	var found []*tidegate.Job
	var shown []string
	for _, job := range s.Jobs(jobType) {
		if contains(jsonOf(job.Job), jsonOf(json.RawMessage(content))) {
			found = append(found, job)
		}
		shown = append(shown, fmt.Sprintf("  %s %s %s", job.ID, job.Phase, job.Data))
	}
	if count < 0 && len(found) == 0 || count >= 0 && len(found) != count {
		s.t.Fatalf("%d jobs of type %s match %s, not %d; there are\n%s",
			len(found), jobType, content, count, strings.Join(shown, "\n"))
	}
	return found
}

// Drain runs the due jobs of a worker's handlers here, until none can start. A job that a handler
// enqueues is run, too, if it is due; a retry that is due later is not. It returns the attempts in
// the order in which they ran.
func (s *Server) Drain(worker *tidegate.Worker) []Run {
	s.t.Helper()
	var runs []Run
	for len(runs) < maxDrained {
		wait := 0.0
		if len(runs) > 0 {
			wait = 0.05
		}
		leases := s.lease(worker.Types(), wait)
		if len(leases) == 0 && s.hasReady(worker.Types()) {
			// A limit may be about to be freed. If not, it holds what is left.
			leases = s.lease(worker.Types(), 1)
		}
		if len(leases) == 0 {
			return runs
		}
		for i := range leases {
			runs = append(runs, s.run(worker, &leases[i]))
		}
	}
	s.t.Fatalf("more than %d attempts: a handler enqueues its own type", maxDrained)
	return nil
}

func (s *Server) lease(types []string, wait float64) []api.Lease {
	s.t.Helper()
	var answer api.Leases
	s.do(tidegate.Request{Method: "POST", Path: "/v1/leases", Body: api.LeaseRequest{
		Types: types, Max: tidegate.Ptr(int64(1)), WaitSeconds: &wait, Worker: tidegate.Ptr("drain"),
	}}, &answer)
	return answer.Leases
}

func (s *Server) hasReady(types []string) bool {
	s.t.Helper()
	for _, name := range types {
		var page api.JobPage
		query := url.Values{"type": {name}, "phase": {"ready"}, "limit": {"1"}}
		s.do(tidegate.Request{Method: "GET", Path: "/v1/jobs", Query: query}, &page)
		if len(page.Jobs) > 0 {
			return true
		}
	}
	return false
}

func (s *Server) run(worker *tidegate.Worker, lease *api.Lease) Run {
	s.t.Helper()
	report, err := worker.Perform(context.Background(), lease)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	job := lease.Job
	s.do(tidegate.Request{
		Method: "POST", Path: "/v1/jobs/" + url.PathEscape(job.Type) + "/" + url.PathEscape(job.ID),
		Body: report, Header: http.Header{"Authorization": {"Bearer " + lease.Token}}, Repeatable: true,
	}, nil)
	run := Run{
		Type: job.Type, ID: job.ID, Attempt: lease.Attempt, Data: job.Data, Status: report.Status,
		Result: report.Result,
	}
	if report.Message != nil {
		run.Message = *report.Message
	}
	return run
}

// RunInPlace runs a handler without a server, as a worker would, and returns its result. Data and result
// are encoded and decoded as on their way through the server, and requests with the handler's context
// carry the job's traceparent. The job has fields such as Attempt, Headers and Checkpoint; nil is the
// first attempt of a job without any. An error of the handler is returned as it is.
func RunInPlace[T any](
	ctx context.Context, run func(ctx context.Context, data T, job *tidegate.Attempt) (any, error),
	data any, job *api.Job,
) (any, error) {
	given := api.Job{ID: "test", Type: "test", MaxAttempts: 3}
	if job != nil {
		given = *job
	}
	content, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("the data of the job is not a JSON value: %w", err)
	}
	given.Data = content
	result, err := tidegate.Call(ctx, run, tidegate.NewAttempt(&given, max(1, given.Attempt)))
	if err != nil {
		return nil, err
	}
	if content, err = json.Marshal(result); err != nil {
		return nil, fmt.Errorf("the result is not a JSON value: %w", err)
	}
	return jsonOf(json.RawMessage(content)), nil
}

// jsonOf returns a value as it is after its way through JSON.
func jsonOf(value any) (decoded any) {
	content, err := json.Marshal(value)
	if err == nil {
		_ = json.Unmarshal(content, &decoded)
	}
	return decoded
}

// contains reports whether wanted is within actual.
func contains(actual, wanted any) bool {
	want, isObject := wanted.(map[string]any)
	if !isObject {
		return reflect.DeepEqual(actual, wanted)
	}
	have, isObject := actual.(map[string]any)
	for name, value := range want {
		if !isObject || !contains(have[name], value) {
			return false
		}
	}
	return isObject
}
