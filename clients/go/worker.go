package tidegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tidegate/tidegate/clients/go/api"
)

const (
	// Most reports, and most bytes of them, in one request.
	maxReports     = 100
	maxReportBytes = 1 << 20
	// How long a report is sent again to a server that does not answer.
	maxReportTime = time.Minute
	// What a handler shows is sent at most this often.
	flushTime = time.Second
	// How long a report waits for the heartbeat that is under way, which may carry log lines.
	maxBeatWait = 5 * time.Second
	// A heartbeat waits for its answer at least this long, unless the lease is over before.
	minBeatTime = time.Second
	// The pause after a heartbeat without an answer.
	minBeatPause = 50 * time.Millisecond
	maxBeatPause = time.Second
	// A server that answers at once without jobs is not called in a hot loop.
	minPoll        = 250 * time.Millisecond
	maxPause       = time.Minute
	registerTime   = 30 * time.Second
	followTime     = 5 * time.Second // how often the desired workers are read
	maxConcurrency = 1000
)

// A report that got one of these is sent again, and so is one with a transient error.
var repeatedReports = []int{408, 429, 500, 502, 503, 504}

// WorkerOptions are the options of a worker. The zero value is ready to use.
type WorkerOptions struct {
	// Name of the worker in lists, unique for each process (default: host, process and chance).
	Name string
	// Wait is how long a lease request waits for jobs, at most a minute (default 20 s).
	Wait time.Duration
	// MaxPause is the longest pause instead, where a server pays for waiting requests (default 10 s).
	MaxPause time.Duration
	// Lease replaces the lease time of the types.
	Lease time.Duration
	// Grace is how long a stop waits for running handlers before it ends their contexts (default: for
	// their end).
	Grace time.Duration
	// Logger gets what the worker does (default: nothing).
	Logger *slog.Logger
}

// HandlerOptions are the options of a handler.
type HandlerOptions struct {
	// Concurrency: at most so many of its jobs run at once in this process, 1 to 1000 (default 1).
	Concurrency int
	// Auto makes Concurrency the maximum, and follows the desired_workers of the types' queues: this
	// worker's share of them, at least 1, read every five seconds. The token needs the scope read in
	// addition to work, and no bound to types.
	Auto bool
	// Min: at least so many jobs are leased at once, unless the wait of a lease request ends: then
	// those that are there. 1 to Concurrency (default 1).
	Min int
	// Queue declares the queue of the types.
	Queue string
	// Config declares the settings of the types: Settings, or an api.TypeConfig; see [Worker.Apply].
	Config any
}

// A Worker leases jobs, runs their handlers, and reports.
//
// For each handler one lease request is open while a slot is free. A report goes with the next lease
// request; while one is open, reports go together in a request of their own, so that no result waits
// for a long poll. A lease request without an answer is repeated under its request_id and gets the
// same leases.
type Worker struct {
	// Config has the declarations of the handlers' types, and what was added.
	Config Config

	client   *Client
	options  WorkerOptions
	loops    []*loop
	outbox   outbox
	invalid  error
	stopping chan struct{}
	// recount has a value when the capacity has changed.
	recount  chan struct{}
	stopOnce sync.Once
	mu       sync.Mutex
	failure  error
}

// NewWorker returns a worker without handlers; add them with [Handle].
func NewWorker(client *Client, options WorkerOptions) *Worker {
	if options.Name == "" {
		host, _ := os.Hostname()
		options.Name = fmt.Sprintf("%s-%d-%s", cut(host, 64), os.Getpid(), randomKey()[:6])
	}
	options.Wait, options.MaxPause = or(options.Wait, 20*time.Second), or(options.MaxPause, 10*time.Second)
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	worker := &Worker{client: client, options: options, stopping: make(chan struct{}), recount: make(chan struct{}, 1)}
	worker.outbox.worker = worker
	return worker
}

// Name returns the worker's name in lists.
func (w *Worker) Name() string { return w.options.Name }

// Handle registers the handler of a job type. It gets the data as a T, and the job. What it returns
// is the result; an error is a failure. Its context ends when the attempt is over, with the cause
// ErrCancelled, ErrLeaseLost or ErrStopping.
//
// A mistake, such as a second handler of the type, is the error of [Worker.Run].
func Handle[T any](
	worker *Worker, jobType string, options HandlerOptions,
	run func(ctx context.Context, data T, job *Attempt) (any, error),
) {
	worker.handle([]string{jobType}, options, typed(run))
}

// HandleTypes registers one handler of several job types, as [Handle]. Its concurrency is that of all of
// them together. With HandlerOptions.Min, they must be of one queue.
func HandleTypes[T any](
	worker *Worker, jobTypes []string, options HandlerOptions,
	run func(ctx context.Context, data T, job *Attempt) (any, error),
) {
	worker.handle(slices.Clone(jobTypes), options, typed(run))
}

func (w *Worker) handle(jobTypes []string, options HandlerOptions, run handlerFunc) {
	concurrency, least := or(options.Concurrency, 1), or(options.Min, 1)
	name := strings.Join(jobTypes, ", ")
	switch {
	case len(jobTypes) == 0:
		w.invalid = errors.New("a handler needs at least one job type")
	case concurrency < 1 || concurrency > maxConcurrency:
		w.invalid = fmt.Errorf("%s: concurrency must be 1 to %d", name, maxConcurrency)
	case least < 1 || least > concurrency:
		w.invalid = fmt.Errorf("%s: min must be 1 to the concurrency, %d", name, concurrency)
	}
	for i, jobType := range jobTypes {
		if w.find(jobType) != nil || slices.Contains(jobTypes[:i], jobType) {
			w.invalid = fmt.Errorf("the job type %s has a handler already", jobType)
		}
		w.declare(jobType, options)
	}
	loop := &loop{
		worker: w, jobTypes: jobTypes, run: run, concurrency: concurrency, limit: concurrency,
		auto: options.Auto, least: least, spans: map[string]time.Duration{},
	}
	if loop.auto {
		loop.limit = 1
	}
	loop.changed = sync.NewCond(&loop.mu)
	w.loops = append(w.loops, loop)
}

// declare adds the settings of a handler's type to the configuration.
func (w *Worker) declare(jobType string, options HandlerOptions) {
	if options.Config != nil || options.Queue != "" {
		var config Config
		err := config.JobType(jobType, options.Config)
		if err == nil {
			settings := config.declared[0].settings
			if options.Queue != "" {
				settings["queue"] = options.Queue
			}
			err = w.Config.JobType(jobType, settings)
		}
		if err != nil {
			w.invalid = err
		}
	}
}

func (w *Worker) find(jobType string) *loop {
	for _, loop := range w.loops {
		if slices.Contains(loop.jobTypes, jobType) {
			return loop
		}
	}
	return nil
}

// Types returns the types that have a handler.
func (w *Worker) Types() []string {
	var types []string
	for _, loop := range w.loops {
		types = append(types, loop.jobTypes...)
	}
	return types
}

// Apply applies the declared configuration, and returns what was done; see [Config]. A handler's type
// that is not declared is created with the defaults if it does not exist.
func (w *Worker) Apply(ctx context.Context) (*Plan, error) {
	config := Config{declared: slices.Clone(w.Config.declared)}
	for _, name := range w.Types() {
		if config.Has("job type", name) {
			continue
		}
		_, err := w.client.Do(ctx, Request{Method: "GET", Path: path("job-types", name)})
		if errors.Is(err, ErrNotFound) {
			err = config.JobType(name, Settings{})
		}
		if err != nil {
			return nil, err
		}
	}
	return w.client.Apply(ctx, &config, true)
}

// Perform runs the handler of a lease here, and returns what is to be reported. It is for tests; a
// running worker does not need it.
func (w *Worker) Perform(ctx context.Context, lease *api.Lease) (*api.Report, error) {
	found := w.find(lease.Job.Type)
	if found == nil {
		return nil, fmt.Errorf("no handler for the type %s", lease.Job.Type)
	}
	job := NewAttempt(&lease.Job, lease.Attempt)
	report, err := perform(ctx, found.run, job)
	if err != nil {
		report = failure(err.Error(), nil, true)
	}
	job.complete(report)
	return report, nil
}

// Run works until ctx ends, SIGTERM or SIGINT comes, or [Worker.Stop] is called. Then it takes no
// more jobs, hands back what has not begun, waits for the rest, and reports it. A second signal ends
// the contexts of the running handlers.
//
// It returns the error that ended the worker, such as ErrNotFound for an unknown type; nil after a
// stop.
func (w *Worker) Run(ctx context.Context) error {
	if w.invalid != nil {
		return w.invalid
	}
	if len(w.loops) == 0 {
		return errors.New("the worker has no handler")
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	// The requests of a worker that stops go on.
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var running sync.WaitGroup
	for _, loop := range w.loops {
		running.Add(1)
		go func() {
			defer running.Done()
			if err := loop.work(own); err != nil {
				w.fail(err)
			}
			loop.finish()
		}()
		if loop.auto {
			go loop.follow(own)
		}
	}
	over := make(chan struct{})
	go func() {
		running.Wait()
		close(over)
	}()
	register := time.NewTicker(registerTime)
	defer register.Stop()
	w.register(own)
	for isStopping := false; !isStopping; {
		select {
		case <-register.C:
			w.register(own)
		case <-w.recount:
			w.register(own)
		case <-ctx.Done():
			w.Stop()
		case <-signals:
			w.Stop()
		case <-w.stopping:
			isStopping = true
		}
	}
	var grace <-chan time.Time
	if w.options.Grace > 0 {
		grace = time.After(w.options.Grace)
	}
	for isOver := false; !isOver; {
		// It ends the waiting lease requests. One that has not arrived yet needs another.
		if slices.ContainsFunc(w.loops, (*loop).isPolling) {
			w.leave(own)
		}
		select {
		case <-over:
			isOver = true
		case <-grace:
			w.abort()
		case <-signals:
			w.abort()
		case <-time.After(300 * time.Millisecond):
		}
	}
	w.leave(own)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}

// Stop begins to stop; [Worker.Run] returns when the worker has ended.
func (w *Worker) Stop() {
	w.stopOnce.Do(func() {
		close(w.stopping)
		for _, loop := range w.loops {
			loop.wake()
		}
	})
}

func (w *Worker) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}

func (w *Worker) fail(err error) {
	w.mu.Lock()
	if w.failure == nil {
		w.failure = err
	}
	w.mu.Unlock()
	w.Stop()
}

func (w *Worker) abort() {
	for _, loop := range w.loops {
		loop.mu.Lock()
		for leased := range loop.attempts {
			leased.cancel(ErrStopping)
		}
		loop.mu.Unlock()
	}
}

func (w *Worker) register(ctx context.Context) {
	capacity := int64(0)
	for _, loop := range w.loops {
		loop.mu.Lock()
		capacity += int64(loop.limit)
		loop.mu.Unlock()
	}
	_, err := w.client.transport.send(ctx, Request{
		Method: "PUT", Path: path("workers", w.options.Name),
		Body: api.Registration{Capacity: &capacity, Types: w.Types()},
	})
	if err != nil {
		w.options.Logger.Info("the worker is not registered", "error", err)
	}
}

func (w *Worker) leave(ctx context.Context) {
	_, err := w.client.transport.send(ctx, Request{
		Method: "DELETE", Path: path("workers", w.options.Name), Query: url.Values{"keep_drain": {"true"}},
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		w.options.Logger.Info("the worker is not deleted from the list", "error", err)
	}
}

// answered handles the answer to one report. A report that was not recorded is sent again. It returns
// false if that is to wait for a while.
func (w *Worker) answered(leased *leasedAttempt, status int, err error) bool {
	report, log := leased.report, w.options.Logger
	isWrong := status == 400 || status == 413
	isOfTheMoment := slices.Contains(repeatedReports, status) || Retryable(err)
	switch {
	case status < 300:
		leased.loop.settled(leased)
	case isOfTheMoment && time.Since(leased.since) < maxReportTime:
		w.outbox.add(leased, false)
		return false
	case status == 404 || status == 409:
		log.Warn("a result is dropped", "job", leased.job.ID, "error", err)
		leased.loop.settled(leased)
	case isWrong && report.Status == api.StatusSucceeded:
		// The work was done, and its result cannot be stored: another attempt would repeat it.
		log.Error("a result was refused", "job", leased.job.ID, "error", err)
		leased.finish(failure(fmt.Sprintf("its result was refused: %v", err), nil, false))
		w.outbox.add(leased, false)
	case isWrong && (report.Error != nil || report.Log != nil || report.Checkpoint != nil):
		log.Error("a report was refused", "job", leased.job.ID, "error", err)
		leased.finish(failure(fmt.Sprintf("its report was refused: %v", err), nil, true))
		w.outbox.add(leased, false)
	default:
		log.Error("a report was refused", "job", leased.job.ID, "error", err)
		leased.loop.settled(leased)
	}
	return true
}

// leasedAttempt is one leased attempt: what runs, and what is reported of it.
type leasedAttempt struct {
	loop   *loop
	job    *Attempt
	token  string
	target string
	lease  time.Duration
	lostAt time.Time
	cancel context.CancelCauseFunc
	// beating has a value while a heartbeat is under way.
	beating chan struct{}
	// reported is closed when the report was acknowledged, or nothing is to be reported.
	reported chan struct{}
	// finished is closed when the handler has ended.
	finished    chan struct{}
	report      *api.Report
	reportBytes int
	since       time.Time
}

func (l *leasedAttempt) finish(report *api.Report) {
	l.job.complete(report)
	content, _ := json.Marshal(report)
	l.report, l.reportBytes, l.since = report, len(content), time.Now()
}

// carried returns the report as a part of a lease request.
func (l *leasedAttempt) carried() api.Report {
	report := *l.report
	report.ID, report.Type, report.Token = &l.job.ID, &l.job.Type, &l.token
	return report
}

func (l *leasedAttempt) header() http.Header {
	return http.Header{"Authorization": {"Bearer " + l.token}}
}

// loop has the lease requests and the slots of one handler.
type loop struct {
	worker      *Worker
	jobTypes    []string
	run         handlerFunc
	concurrency int
	auto        bool
	least       int

	// repeatedFor is how long the lease request that was answered had been repeated, and spans how long
	// the leases of each type last. The goroutine of work alone has them.
	repeatedFor time.Duration
	spans       map[string]time.Duration

	mu      sync.Mutex
	changed *sync.Cond
	// limit is how many of its jobs may run.
	limit    int
	running  int
	polling  bool
	attempts map[*leasedAttempt]struct{}
	// pending are the reports for the next lease request; sent are those of the open one.
	pending    []*leasedAttempt
	sent       []*leasedAttempt
	pauseUntil time.Time
}

// free returns how many more jobs may run. The lock is held.
func (l *loop) free() int { return max(0, l.limit-l.running) }

// follow follows the desired workers, between 1 and the concurrency, until the worker stops.
func (l *loop) follow(ctx context.Context) {
	ticker := time.NewTicker(followTime)
	defer ticker.Stop()
	for {
		desired, err := l.desired(ctx)
		switch {
		case errors.Is(err, ErrForbidden):
			// The scopes and bounds of a token never change.
			l.worker.options.Logger.Warn("the handler runs one job at a time: auto needs the scope "+
				"read, and no bound to types", "types", l.jobTypes, "error", err)
			return
		case err != nil:
			l.worker.options.Logger.Info("the desired workers are unknown", "error", err)
		default:
			// At least one lease request keeps the queue aware of this worker.
			l.setLimit(max(1, min(desired, l.concurrency)))
		}
		select {
		case <-ticker.C:
		case <-l.worker.stopping:
			return
		}
	}
}

func (l *loop) setLimit(limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit == limit {
		return
	}
	l.limit = limit
	l.changed.Broadcast()
	select {
	case l.worker.recount <- struct{}{}:
	default:
	}
}

// desired returns this worker's share of the desired workers of the types' queues.
func (l *loop) desired(ctx context.Context) (int, error) {
	var queues []string
	for _, jobType := range l.jobTypes {
		config, err := decode[api.TypeConfig](l.worker.client.transport.send(ctx, Request{
			Method: "GET", Path: path("job-types", jobType),
		}))
		if err != nil {
			return 0, err
		}
		name := "default"
		if config.Queue != nil {
			name = *config.Queue
		}
		if !slices.Contains(queues, name) {
			queues = append(queues, name)
		}
	}
	sum := 0
	for _, name := range queues {
		share, err := l.share(ctx, name)
		if err != nil {
			return 0, err
		}
		sum += share
	}
	return sum, nil
}

// share returns what each worker of a queue takes of its desired workers, if all take the same. Rounded
// up, so that together they take no less than is desired.
func (l *loop) share(ctx context.Context, name string) (int, error) {
	transport := l.worker.client.transport
	queue, err := decode[api.Queue](transport.send(ctx, Request{Method: "GET", Path: path("queues", name)}))
	if err != nil || queue.Status == nil {
		return 1, err
	}
	workers := int64(1)
	if shared := queue.Status.Workers; shared != nil {
		workers = max(1, *shared)
	}
	return int((queue.Status.DesiredWorkers + workers - 1) / workers), nil
}

func (l *loop) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed.Broadcast()
}

func (l *loop) isPolling() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.polling
}

func (l *loop) settled(leased *leasedAttempt) {
	close(leased.reported)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.attempts, leased)
	l.changed.Broadcast()
}

// work sends one lease request after another, each until it is answered.
func (l *loop) work(ctx context.Context) error {
	for {
		body := l.next()
		if body == nil {
			return nil
		}
		began := time.Now()
		answer, err := l.send(ctx, body)
		l.mu.Lock()
		l.polling = false
		sent := l.sent
		l.sent = nil
		l.mu.Unlock()
		if err != nil || answer == nil {
			for _, leased := range sent {
				l.worker.outbox.add(leased, false)
			}
			return err
		}
		for i, leased := range sent {
			if i < len(answer.Reports) {
				l.worker.answered(leased, int(answer.Reports[i].Status), refusalOf(answer.Reports[i]))
			}
		}
		for i := range answer.Leases {
			l.begin(ctx, &answer.Leases[i])
		}
		pause := time.Duration(0)
		if len(answer.Leases) == 0 && time.Since(began) < minPoll {
			pause = minPoll
		}
		if answer.RetryAfterSeconds != nil {
			pause = min(duration(*answer.RetryAfterSeconds), maxPause)
		}
		if answer.Stop != nil && *answer.Stop {
			l.worker.options.Logger.Info("the server stops this worker")
			l.worker.Stop()
		}
		l.mu.Lock()
		l.pauseUntil = time.Now().Add(pause)
		l.mu.Unlock()
	}
}

func refusalOf(reported api.Reported) error {
	if reported.Error == nil {
		return nil
	}
	return &ProblemError{Status: int(reported.Status), Problem: *reported.Error}
}

// finish returns when every attempt is reported.
func (l *loop) finish() {
	l.mu.Lock()
	pending := l.pending
	l.pending = nil
	l.mu.Unlock()
	for _, leased := range pending {
		l.worker.outbox.add(leased, false)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.attempts) > 0 {
		l.changed.Wait()
	}
}

// next waits for a free slot, and returns the next request; nil if the worker stops.
func (l *loop) next() *api.LeaseRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.worker.isStopping() {
		rest := time.Until(l.pauseUntil)
		// A finished job ends a pause: its report goes at once.
		if l.free() > 0 && (rest <= 0 || len(l.pending) > 0) {
			break
		}
		var timer *time.Timer
		if rest > 0 && l.free() > 0 {
			timer = time.AfterFunc(rest, l.wake)
		}
		l.changed.Wait()
		if timer != nil {
			timer.Stop()
		}
	}
	if l.worker.isStopping() {
		return nil
	}
	size := 0
	for _, leased := range l.pending {
		// The request may wait long, so what does not fit goes apart.
		if size += leased.reportBytes; len(l.sent) < maxReports && size <= maxReportBytes {
			l.sent = append(l.sent, leased)
		} else {
			l.worker.outbox.add(leased, false)
		}
	}
	l.pending = nil
	l.polling = true
	options := l.worker.options
	body := &api.LeaseRequest{
		Types: l.jobTypes, Max: Ptr(int64(l.free())), WaitSeconds: seconds(options.Wait),
		MaxPauseSeconds: seconds(options.MaxPause), Worker: &options.Name, RequestID: Ptr(randomKey()),
		LeaseSeconds: seconds(options.Lease),
	}
	if least := min(l.least, l.free()); least > 1 {
		body.Min = Ptr(int64(least))
	}
	for _, leased := range l.sent {
		body.Reports = append(body.Reports, leased.carried())
	}
	return body
}

// send sends a request until it is answered. It returns nil if the worker stops and the server has
// not answered for a minute, and the error of a request that is wrong.
func (l *loop) send(ctx context.Context, body *api.LeaseRequest) (*api.Leases, error) {
	since := time.Now()
	for failures := 1; ; failures++ {
		if failures > 1 && l.worker.isStopping() {
			// It gets the leases of the request that it repeats, and no others.
			*body.Max, body.Min = 0, nil
		}
		wait := time.Duration(0)
		if *body.Max > 0 {
			wait = l.worker.options.Wait
		}
		answer, err := decode[api.Leases](l.worker.client.transport.send(ctx, Request{
			Method: "POST", Path: "/v1/leases", Body: body, Wait: wait,
		}))
		if err == nil {
			l.repeatedFor = 0
			if failures > 1 {
				l.repeatedFor = time.Since(since)
			}
			return &answer, nil
		}
		status := statusOf(err)
		if len(body.Reports) > 0 && (status == 400 || status == 413) {
			// One of the reports is wrong: each gets an answer of its own.
			l.mu.Lock()
			sent := l.sent
			l.sent = nil
			l.mu.Unlock()
			for _, leased := range sent {
				l.worker.outbox.add(leased, true)
			}
			body.Reports = nil
			continue
		}
		isHopeless := l.worker.isStopping() && time.Since(since) > maxReportTime
		if isHopeless {
			return nil, nil
		}
		if !Retryable(err) && status != 500 {
			return nil, err
		}
		pause := backoff(failures, minPoll)
		if after, isGiven := RetryAfter(err); isGiven {
			pause += min(after, maxPause)
		}
		l.worker.options.Logger.Info("no lease", "error", err, "again_in", pause)
		if l.worker.isStopping() {
			_ = sleep(ctx, min(pause, time.Second))
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.worker.stopping:
		}
		timer.Stop()
	}
}

func statusOf(err error) int {
	var problem *ProblemError
	if errors.As(err, &problem) {
		return problem.Status
	}
	return 0
}

// leaseTime returns how long a lease lasts without a heartbeat.
func (l *loop) leaseTime(lease *api.Lease) time.Duration {
	span := time.Millisecond
	if started := lease.Job.StartedAt; started != nil {
		// Both are of the server's clock, so a wrong clock here does no harm.
		from, _ := time.Parse(time.RFC3339, *started)
		to, _ := time.Parse(time.RFC3339, lease.ExpiresAt)
		span = max(span, to.Sub(from))
	}
	if own := l.worker.options.Lease; own > 0 {
		return min(span, own)
	}
	if l.repeatedFor == 0 {
		l.spans[lease.Job.Type] = span
		return span
	}
	if known, isKnown := l.spans[lease.Job.Type]; isKnown {
		return min(span, known)
	}
	// A repeat renewed the lease, which may have begun with the first request.
	return max(span-l.repeatedFor, span/4)
}

func (l *loop) begin(ctx context.Context, lease *api.Lease) {
	span := l.leaseTime(lease)
	ctx, cancel := context.WithCancelCause(ctx)
	leased := &leasedAttempt{
		loop: l, job: NewAttempt(&lease.Job, lease.Attempt), token: lease.Token,
		target: path("jobs", lease.Job.Type, lease.Job.ID), lease: span, lostAt: time.Now().Add(span),
		cancel: cancel, beating: make(chan struct{}, 1), reported: make(chan struct{}), finished: make(chan struct{}),
	}
	l.mu.Lock()
	if l.attempts == nil {
		l.attempts = map[*leasedAttempt]struct{}{}
	}
	l.attempts[leased] = struct{}{}
	l.running++
	l.mu.Unlock()
	go l.attempt(ctx, leased)
	go l.beat(context.WithoutCancel(ctx), leased)
}

func (l *loop) attempt(ctx context.Context, leased *leasedAttempt) {
	defer leased.cancel(nil)
	var report *api.Report
	log := l.worker.options.Logger.With(
		"type", leased.job.Type, "job", leased.job.ID, "attempt", leased.job.Number)
	if l.worker.isStopping() {
		report = &api.Report{
			Status: api.StatusReleased, Message: Ptr("its worker stopped before it began"),
		}
	} else {
		var err error
		report, err = perform(ctx, l.run, leased.job)
		if errors.Is(err, ErrLater) {
			report = failure("only a push reports later", nil, false)
		}
		switch {
		case report == nil:
			log.Warn("lost")
		case report.Status == api.StatusFailed:
			log.Warn("failed", "message", *report.Message)
		default:
			log.Info(string(report.Status))
		}
	}
	if report != nil {
		// A heartbeat that came after the report would be refused, and its lines lost.
		select {
		case leased.beating <- struct{}{}:
			defer func() { <-leased.beating }()
		case <-time.After(maxBeatWait):
		}
	}
	close(leased.finished)
	if report != nil {
		leased.finish(report)
	}
	l.mu.Lock()
	l.running--
	isCarried := report != nil && !l.polling && !l.worker.isStopping()
	if isCarried {
		l.pending = append(l.pending, leased)
	}
	l.changed.Broadcast()
	l.mu.Unlock()
	if report == nil {
		l.settled(leased)
	} else if !isCarried {
		l.worker.outbox.add(leased, false)
	}
}

// beat sends heartbeats, at a third of the lease or when there is something to show, until the
// report is acknowledged or the attempt is over.
func (l *loop) beat(ctx context.Context, leased *leasedAttempt) {
	last := time.Now()
	next := last.Add(leased.lease / 3)
	for {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-leased.reported:
			timer.Stop()
			return
		case <-leased.job.changed:
			timer.Stop()
			if due := last.Add(flushTime); due.Before(next) {
				next = due
			}
			continue
		case <-timer.C:
		}
		last = time.Now()
		next = last.Add(leased.lease / 3)
		leased.beating <- struct{}{}
		retry, isOver := l.beatOnce(ctx, leased)
		<-leased.beating
		if isOver {
			return
		}
		if retry > 0 {
			next = time.Now().Add(retry)
		}
	}
}

// beatOnce sends a heartbeat. It returns when to send the next one, 0 if at a third of the lease, and
// whether the attempt is over.
func (l *loop) beatOnce(ctx context.Context, leased *leasedAttempt) (retry time.Duration, isOver bool) {
	isFinished := false
	shown := api.Heartbeat{Attempt: leased.job.Number}
	select {
	case <-leased.finished:
		isFinished = true
	default:
		shown = leased.job.take()
	}
	shown.LeaseSeconds = seconds(l.worker.options.Lease)
	sentAt := time.Now()
	// Half of what is left, so that one that hangs leaves time for another. An attempt that runs on
	// is aborted when its lease is over by this worker's record, however the request hangs.
	rest := leased.lostAt.Sub(sentAt)
	wait := max(rest/2, minBeatTime)
	if !isFinished {
		wait = min(wait, max(rest, minBeatPause))
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	answer, err := decode[api.Beat](l.worker.client.transport.send(ctx, Request{
		Method: "POST", Path: leased.target + "/heartbeat", Body: shown, Header: leased.header(),
	}))
	status := statusOf(err)
	switch {
	case err == nil:
		leased.lostAt = sentAt.Add(leased.lease)
		if answer.Cancel {
			leased.cancel(ErrCancelled)
		}
	case (status == 404 || status == 409) && !Retryable(err):
		// The report was recorded, or the attempt is over.
		if !isFinished {
			leased.cancel(ErrLeaseLost)
		}
		return 0, true
	case status == 400 || status == 413:
		// What it showed is wrong, and the lease lasts.
		l.worker.options.Logger.Warn("a heartbeat was refused", "job", leased.job.ID, "error", err)
	default:
		if !Retryable(err) {
			l.worker.options.Logger.Warn("a heartbeat was refused", "job", leased.job.ID, "error", err)
		}
		leased.job.putBack(shown)
		rest := time.Until(leased.lostAt)
		switch {
		case isFinished:
			return maxBeatPause, false
		case rest <= 0:
			// Another worker may have the job.
			leased.cancel(ErrLeaseLost)
			return 0, true
		}
		return max(minBeatPause, min(maxBeatPause, rest/2)), false
	}
	return 0, false
}

// outbox has the reports that no lease request carries: they go together in requests of their own.
type outbox struct {
	worker  *Worker
	mu      sync.Mutex
	pending []outgoing
	sending bool
}

type outgoing struct {
	*leasedAttempt
	alone bool
}

func (o *outbox) add(leased *leasedAttempt, alone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = append(o.pending, outgoing{leased, alone})
	if !o.sending {
		o.sending = true
		go o.run()
	}
}

func (o *outbox) run() {
	failures := 0
	for {
		batch := o.take()
		if batch == nil {
			return
		}
		if o.send(batch) {
			failures = 0
			continue
		}
		failures++
		time.Sleep(backoff(failures, minBackoff))
	}
}

func (o *outbox) take() []outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	size := 0
	count := 0
	for _, next := range o.pending {
		size += next.reportBytes
		if count > 0 && (count == maxReports || size > maxReportBytes || next.alone || o.pending[0].alone) {
			break
		}
		count++
	}
	if count == 0 {
		o.sending = false
		return nil
	}
	batch := o.pending[:count:count]
	o.pending = o.pending[count:]
	return batch
}

// send sends reports. It returns false if the server is to be left alone for a while.
func (o *outbox) send(batch []outgoing) bool {
	ctx := context.Background()
	transport := o.worker.client.transport
	var err error
	if len(batch) == 1 {
		one := batch[0]
		_, err = transport.send(ctx, Request{
			Method: "POST", Path: one.target, Body: one.report, Header: one.header(),
		})
		if err == nil {
			return o.worker.answered(one.leasedAttempt, 200, nil)
		}
	} else {
		body := api.LeaseRequest{Max: Ptr(int64(0)), Worker: &o.worker.options.Name}
		for _, next := range batch {
			body.Reports = append(body.Reports, next.carried())
		}
		var answer api.Leases
		answer, err = decode[api.Leases](transport.send(ctx, Request{
			Method: "POST", Path: "/v1/leases", Body: body,
		}))
		if err == nil && len(answer.Reports) == len(batch) {
			areTaken := true
			for i, next := range batch {
				reported := answer.Reports[i]
				areTaken = o.worker.answered(next.leasedAttempt, int(reported.Status), refusalOf(reported)) && areTaken
			}
			return areTaken
		}
	}
	status := or(statusOf(err), 503)
	if len(batch) > 1 && (status == 400 || status == 413) {
		for _, next := range batch {
			o.add(next.leasedAttempt, true)
		}
		return true
	}
	areTaken := true
	for _, next := range batch {
		areTaken = o.worker.answered(next.leasedAttempt, status, err) && areTaken
	}
	return areTaken
}
