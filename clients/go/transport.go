package tidegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate/clients/go/api"
)

const (
	maxAnswerBytes = 1 << 30
	minBackoff     = 100 * time.Millisecond
	maxBackoff     = 10 * time.Second
	maxRetryAfter  = time.Minute
)

// ClientOptions are the options of a client. The zero value is a client of TIDEGATE_URL and
// TIDEGATE_TOKEN.
type ClientOptions struct {
	// URL of the server (default: TIDEGATE_URL, or http://127.0.0.1:8080).
	URL string
	// Token for access (default: TIDEGATE_TOKEN).
	Token string
	// Timeout of an answer, in addition to the time that the request itself waits (default 30 s).
	Timeout time.Duration
	// Repeats is the most repeats of a request that is safe to repeat (default 5; negative: none).
	Repeats int
	// RepeatTime: no repeat begins later than this after the first try (default 30 s).
	RepeatTime time.Duration
	// HTTP replaces the HTTP client. Its Timeout must be 0, because requests wait for jobs.
	HTTP *http.Client
}

// A Request is any request of the API, for [Client.Do].
type Request struct {
	Method string
	// Path begins with /v1/.
	Path  string
	Query url.Values
	// Body is sent as JSON, unless it is nil.
	Body   any
	Header http.Header
	// Wait is the time that the request makes the server wait.
	Wait time.Duration
	// Repeatable says that a repeat is harmless. GET, PUT, DELETE, and requests with an
	// Idempotency-Key, are repeated without it.
	Repeatable bool
	// Once says that the request is not repeated, whatever its method.
	Once bool
}

// An Answer is one with a status below 400.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

type transport struct {
	base       string
	token      string
	timeout    time.Duration
	repeats    int
	repeatTime time.Duration
	http       *http.Client
}

func newTransport(options ClientOptions) (*transport, error) {
	base := options.URL
	if base == "" {
		base = os.Getenv("TIDEGATE_URL")
	}
	if base == "" {
		base = "http://127.0.0.1:8080"
	}
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	parsed, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	if (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		return nil, fmt.Errorf("an http:// or https:// URL is expected, not %q", base)
	}
	if parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		return nil, errors.New("the URL must have no credentials, query or fragment")
	}
	token := options.Token
	if token == "" {
		token = os.Getenv("TIDEGATE_TOKEN")
	}
	client := options.HTTP
	if client == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.MaxIdleConnsPerHost = 64
		// Shorter than the server's time, so that it does not close a connection that is in use.
		own.IdleConnTimeout = 30 * time.Second
		client = &http.Client{Transport: own, CheckRedirect: noRedirect}
	}
	return &transport{
		base:       strings.TrimRight(base, "/"),
		token:      token,
		timeout:    or(options.Timeout, 30*time.Second),
		repeats:    or(options.Repeats, 5),
		repeatTime: or(options.RepeatTime, 30*time.Second),
		http:       client,
	}, nil
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func or[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

// request sends a request, and repeats it if that is harmless.
func (t *transport) request(ctx context.Context, r Request) (*Answer, error) {
	repeatable := !r.Once && (r.Repeatable || r.Header.Get("Idempotency-Key") != "" ||
		slices.Contains([]string{"GET", "PUT", "DELETE"}, r.Method))
	began := time.Now()
	for tries := 1; ; tries++ {
		answer, err := t.send(ctx, r)
		if err == nil {
			return answer, nil
		}
		if !repeatable || !Retryable(err) || tries > t.repeats || ctx.Err() != nil {
			return nil, err
		}
		pause := backoff(tries, minBackoff)
		if after, isGiven := RetryAfter(err); isGiven {
			pause = min(after, maxRetryAfter) + pause/10
		}
		if time.Since(began)+pause > t.repeatTime {
			return nil, err
		}
		if sleep(ctx, pause) != nil {
			return nil, err
		}
	}
}

// send sends a request once.
func (t *transport) send(ctx context.Context, r Request) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout+r.Wait)
	defer cancel()
	response, err := t.open(ctx, r, "application/json")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := readAll(response)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Status: response.StatusCode, Header: response.Header, Body: body}
	if response.StatusCode >= 300 {
		return nil, problemOf(answer)
	}
	return answer, nil
}

func readAll(response *http.Response) ([]byte, error) {
	var body bytes.Buffer
	if response.ContentLength > 0 && response.ContentLength <= 1<<20 {
		body.Grow(int(response.ContentLength) + bytes.MinRead)
	}
	n, err := body.ReadFrom(io.LimitReader(response.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%w: the answer broke: %w", ErrUnreachable, err)
	}
	if n > maxAnswerBytes {
		return nil, fmt.Errorf("%w: it has more than 1 GiB", ErrUnexpectedAnswer)
	}
	return body.Bytes(), nil
}

// open sends a request, and returns as soon as the head of the answer has come.
func (t *transport) open(ctx context.Context, r Request, accept string) (*http.Response, error) {
	target := t.base + r.Path
	if len(r.Query) > 0 {
		target += "?" + r.Query.Encode()
	}
	var body io.Reader
	if r.Body != nil {
		content, err := json.Marshal(r.Body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(content)
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, target, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("User-Agent", "tidegate-go/"+Version)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if t.token != "" {
		request.Header.Set("Authorization", "Bearer "+t.token)
	}
	if trace := Traceparent(ctx); trace != "" {
		request.Header.Set("Traceparent", trace)
	}
	for name, values := range r.Header {
		request.Header[name] = values
	}
	response, err := t.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return response, nil
}

func problemOf(answer *Answer) *ProblemError {
	problem := &ProblemError{Status: answer.Status, RequestID: answer.Header.Get("X-Request-Id")}
	if json.Unmarshal(answer.Body, &problem.Problem) != nil || problem.Problem.Title == "" {
		problem.Problem = api.Problem{
			Title:  fmt.Sprintf("HTTP %d", answer.Status),
			Detail: "the answer is not a problem document, so it may not be tidegate's",
		}
	}
	if seconds, err := strconv.ParseFloat(answer.Header.Get("Retry-After"), 64); err == nil {
		after := duration(seconds)
		problem.RetryAfter = &after
	}
	return problem
}

// backoff returns the wait after the failed try number tries, from 1: doubled, half of it random.
func backoff(tries int, least time.Duration) time.Duration {
	span := math.Min(float64(maxBackoff), float64(least)*math.Pow(2, float64(min(tries-1, 30))))
	return time.Duration(span * (0.5 + rand.Float64()/2))
}

func sleep(ctx context.Context, span time.Duration) error {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func duration(seconds float64) time.Duration {
	if !(seconds > 0) {
		return 0
	}
	return time.Duration(math.Min(seconds, 1e9) * float64(time.Second))
}

func path(segments ...string) string {
	target := "/v1"
	for _, segment := range segments {
		target += "/" + url.PathEscape(segment)
	}
	return target
}

func decode[T any](answer *Answer, err error) (T, error) {
	var value T
	if err != nil {
		return value, err
	}
	if len(answer.Body) == 0 {
		return value, nil
	}
	if err := json.Unmarshal(answer.Body, &value); err != nil {
		return value, fmt.Errorf("%w: %w", ErrUnexpectedAnswer, err)
	}
	return value, nil
}

type traceKey struct{}

// WithTraceparent returns a context whose requests carry a W3C trace context. The context of a
// handler has that of its job.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceKey{}, traceparent)
}

// Traceparent returns the trace context that requests with ctx carry; empty if there is none.
func Traceparent(ctx context.Context) string {
	trace, _ := ctx.Value(traceKey{}).(string)
	return trace
}

// Ptr returns a pointer to value, for optional fields.
func Ptr[T any](value T) *T { return &value }
