package tidegate

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// The server sends a comment at least this often; a longer silence is a broken connection.
	maxSilence   = time.Minute
	maxLineBytes = 1 << 20
)

// A Change is one event of the stream.
type Change struct {
	// Name is ready, job, removed, queue, job_type, worker or skipped.
	Name string
	// ID is for After of a later stream; it may be empty.
	ID string
	// Data is as the API describes it: an api.JobChange and the like.
	Data json.RawMessage
}

// StreamOptions say which changes. The zero value is all.
type StreamOptions struct {
	Queue, Type string
	IDs         []string
	// After is the ID of the last event that was read.
	After string
}

// Stream yields the changes of jobs, queues, types and workers as they are committed, until ctx
// ends. It connects again after a break, and goes on behind the last event. It ends after an error.
func (c *Client) Stream(ctx context.Context, options StreamOptions) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		failures := 0
		for ctx.Err() == nil {
			isOver := false
			err := c.connection(ctx, options, func(change Change) bool {
				failures = 0
				if change.ID != "" {
					options.After = change.ID
				}
				isOver = !yield(change, nil)
				return !isOver
			})
			if isOver || ctx.Err() != nil {
				return
			}
			if err != nil {
				if !Retryable(err) {
					yield(Change{}, err)
					return
				}
				failures++
				_ = sleep(ctx, backoff(failures, minBackoff))
			}
		}
	}
}

func (c *Client) connection(ctx context.Context, options StreamOptions, take func(Change) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(maxSilence, cancel)
	defer silence.Stop()
	query, header := url.Values{}, http.Header{}
	for name, value := range map[string]string{
		"queue": options.Queue, "type": options.Type, "id": strings.Join(options.IDs, ","),
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if options.After != "" {
		header.Set("Last-Event-Id", options.After)
	}
	request := Request{Method: "GET", Path: "/v1/stream", Query: query, Header: header}
	response, err := c.transport.open(ctx, request, "text/event-stream")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		body, err := readAll(response)
		if err != nil {
			return err
		}
		return problemOf(&Answer{Status: response.StatusCode, Header: response.Header, Body: body})
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxLineBytes)
	var change Change
	var data []string
	for lines.Scan() {
		silence.Reset(maxSilence)
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			change.Name = value
		case "id":
			change.ID = value
		case "data":
			data = append(data, value)
		case "":
			if lines.Text() == "" && data != nil {
				change.Data = json.RawMessage(strings.Join(data, "\n"))
				if !take(change) {
					return nil
				}
				change, data = Change{}, nil
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: the stream broke: %w", ErrUnreachable, err)
	}
	return nil
}
