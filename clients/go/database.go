package tidegate

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate/clients/go/api"
)

// What the SQL function would refuse, too. But its error would end the transaction.
var (
	schemaPattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)
	typePattern   = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

// Each value goes as a text: a driver need not know the types of the others.
const enqueueCall = `SELECT "%s".enqueue(type => $1::text, data => $2::text::json, ` +
	`delay => $3::text::interval, run_at => $4::text::timestamptz, options => $5::text::json) AS id`

// A Queryer is a connection to Postgres or a transaction in it: a [sql.Tx], [sql.Conn] or [sql.DB].
type Queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// A Schema is the schema of the servers in a Postgres database.
type Schema string

// DefaultSchema is the schema of servers whose --store names no other one.
const DefaultSchema Schema = "tidegate"

// EnqueueIn enqueues a job in a transaction of the application, in the Postgres database of the servers,
// and returns its id. The job exists if and only if the transaction commits. Options may be nil; see
// [Schema.Statement] for those that are refused.
//
// The call neither begins nor ends a transaction. If a job with the same unique key answers the request,
// no job has the returned id. An error of the driver is returned as it is. What only a server can check
// becomes a dead letter.
func EnqueueIn(ctx context.Context, tx Queryer, jobType string, data any, options *EnqueueOptions) (string, error) {
	return DefaultSchema.EnqueueIn(ctx, tx, jobType, data, options)
}

// EnqueueIn enqueues a job of the type; see [EnqueueIn].
func (t JobType[T]) EnqueueIn(ctx context.Context, tx Queryer, data T, options *EnqueueOptions) (string, error) {
	return EnqueueIn(ctx, tx, t.Name, data, options)
}

// EnqueueIn enqueues a job by the servers of the schema; see [EnqueueIn].
func (s Schema) EnqueueIn(ctx context.Context, tx Queryer, jobType string, data any, options *EnqueueOptions) (string, error) {
	query, args, err := s.Statement(ctx, jobType, data, options)
	if err != nil {
		return "", err
	}
	var id string
	err = tx.QueryRowContext(ctx, query, args...).Scan(&id)
	return id, err
}

// Statement returns the statement of [EnqueueIn] and its arguments, for drivers without database/sql, such
// as pgx. Its row has one column, the id of the job.
//
// The error names an argument that is wrong. ID is refused, because the database makes it; Critical, because
// it needs a token; IdempotencyKey, because the transaction decides whether the job exists.
func (s Schema) Statement(ctx context.Context, jobType string, data any, options *EnqueueOptions) (query string, args []any, err error) {
	if !schemaPattern.MatchString(string(s)) {
		return "", nil, errors.New("the schema must be 1 to 63 of a-z 0-9 _, and begin with a letter")
	}
	if !typePattern.MatchString(jobType) || jobType == "." || jobType == ".." {
		return "", nil, errors.New(`the job type must be 1 to 64 of A-Z a-z 0-9 _ . -, and not "." or ".."`)
	}
	if options == nil {
		options = &EnqueueOptions{}
	}
	if err := options.checkInTransaction(); err != nil {
		return "", nil, err
	}
	body, err := options.body(jobType, data)
	if err != nil {
		return "", nil, err
	}
	args = []any{jobType, string(body.Data), nil, nil, nil}
	if options.Delay != 0 {
		args[2] = strconv.FormatFloat(options.Delay.Seconds(), 'f', 3, 64) + " seconds"
	}
	if body.RunAt != nil {
		args[3] = *body.RunAt
	}
	if trace := Traceparent(ctx); trace != "" {
		body.Headers = withTraceparent(body.Headers, trace)
	}
	if args[4], err = remainingOptions(body); err != nil {
		return "", nil, err
	}
	return fmt.Sprintf(enqueueCall, string(s)), args, nil
}

// checkInTransaction returns an error for the first option that an enqueue in a transaction cannot have.
func (o *EnqueueOptions) checkInTransaction() error {
	switch {
	case o.ID != "":
		return errors.New("the option ID must not be given, because the database makes it")
	case o.Critical:
		return errors.New("the option Critical must not be given, because it needs a token")
	case o.IdempotencyKey != "":
		return errors.New("the option IdempotencyKey must not be given: the transaction decides whether the job exists")
	case o.Delay < 0:
		return errors.New("the option Delay must not be negative")
	case o.Delay != 0 && !o.RunAt.IsZero():
		return errors.New("the option Delay must not be given with RunAt")
	case !o.RunAt.IsZero() && (o.RunAt.Before(time.Unix(0, 0)) || o.RunAt.UTC().Year() > 9999):
		return errors.New("the option RunAt must be from 1970 to 9999")
	}
	return nil
}

// withTraceparent returns headers with a trace context, unless they have one.
func withTraceparent(headers map[string]string, trace string) map[string]string {
	all := map[string]string{"traceparent": trace}
	for name, value := range headers {
		if strings.EqualFold(name, "traceparent") {
			return headers
		}
		all[name] = value
	}
	return all
}

// remainingOptions returns the JSON of the fields of a job that are no arguments of the function.
func remainingOptions(body *api.NewJob) (string, error) {
	content, err := json.Marshal(body)
	if err != nil {
		return "", fmt.Errorf("an option of the job is not a JSON value: %w", err)
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(content, &fields); err != nil {
		return "", err
	}
	for _, name := range []string{"type", "data", "delay_seconds", "run_at"} {
		delete(fields, name)
	}
	content, err = json.Marshal(fields)
	return string(content), err
}
