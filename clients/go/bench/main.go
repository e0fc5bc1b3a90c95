// Command bench compares this client's requests per second with those of plain net/http.
//
//	TIDEGATE_URL=... go run ./bench [SECONDS]
//
// Both enqueue the same jobs with an Idempotency-Key, and take turns with each request. The slowest
// twentieth of each is left out. The exit code is 1 if the client has less than 80 %. The jobs are then
// run by a worker.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	tidegate "github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/api"
)

var (
	client *tidegate.Client
	data   = map[string]any{"to": "ann@example.com", "pages": 3}
	number atomic.Int64
	own    = http.DefaultTransport.(*http.Transport).Clone()
)

func plain(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{"type": "bench", "data": data})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, "POST", client.URL()+"/v1/jobs", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	key := strconv.FormatInt(time.Now().UnixNano(), 36) + strconv.FormatInt(number.Add(1), 36)
	request.Header.Set("Idempotency-Key", key)
	answer, err := (&http.Client{Transport: own}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	var job api.Job
	err = errors.Join(err, json.Unmarshal(content, &job))
	if answer.StatusCode != 201 {
		return fmt.Errorf("%d: %s", answer.StatusCode, content)
	}
	return err
}

func enqueued(ctx context.Context) error {
	job, err := client.Enqueue(ctx, "bench", data, nil)
	if err == nil && !job.IsNew {
		return errors.New("the job is not new")
	}
	return err
}

// rates returns the requests per second of both, by the mean time of a request.
func rates(span time.Duration, callers int) (other, ours float64) {
	end := time.Now().Add(span)
	var mu sync.Mutex
	var took [2][]time.Duration
	var all sync.WaitGroup
	for range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for time.Now().Before(end) {
				for i, enqueue := range []func(context.Context) error{plain, enqueued} {
					began := time.Now()
					if err := enqueue(context.Background()); err != nil {
						log.Fatal(err)
					}
					mu.Lock()
					took[i] = append(took[i], time.Since(began))
					mu.Unlock()
				}
			}
		}()
	}
	all.Wait()
	rate := func(times []time.Duration) float64 {
		slices.Sort(times)
		var sum time.Duration
		kept := times[:len(times)*19/20]
		for _, time := range kept {
			sum += time
		}
		return float64(callers*len(kept)) / sum.Seconds()
	}
	return rate(took[0]), rate(took[1])
}

func main() {
	log.SetFlags(0)
	seconds := 8
	if len(os.Args) > 1 {
		given, err := strconv.Atoi(os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		seconds = given
	}
	own.MaxIdleConnsPerHost = 64
	ctx := context.Background()
	var err error
	if client, err = tidegate.NewClient(tidegate.ClientOptions{}); err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"bench", "bench-run"} {
		put := tidegate.Request{Method: "PUT", Path: "/v1/job-types/" + name, Body: tidegate.Settings{}}
		if _, err := client.Do(ctx, put); err != nil {
			log.Fatal(err)
		}
	}
	worst := 1.0
	for _, callers := range []int{1, 8} {
		other, ours := rates(time.Duration(seconds)*time.Second, callers)
		worst = min(worst, ours/other)
		fmt.Printf("go          %d callers: net/http %.0f/s, tidegate %.0f/s, %.0f %%\n",
			callers, other, ours, 100*ours/other)
	}
	const jobs = 2000
	many := make([]tidegate.NewJob, jobs)
	for i := range many {
		many[i] = tidegate.NewJob{Type: "bench-run", Data: data}
	}
	if _, err := client.EnqueueMany(ctx, many, ""); err != nil {
		log.Fatal(err)
	}
	worker := tidegate.NewWorker(client, tidegate.WorkerOptions{})
	var left atomic.Int64
	left.Store(jobs)
	began := time.Now()
	tidegate.Handle(worker, "bench-run", tidegate.HandlerOptions{Concurrency: 50},
		func(context.Context, any, *tidegate.Attempt) (any, error) {
			if left.Add(-1) == 0 {
				worker.Stop()
			}
			return nil, nil
		})
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("go          worker: %.0f jobs/s\n", jobs/time.Since(began).Seconds())
	if worst < 0.8 {
		os.Exit(1)
	}
}
