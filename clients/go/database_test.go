package tidegate_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	tidegate "github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/api"
)

const enqueueCall = `SELECT "tidegate".enqueue(type => $1::text, data => $2::text::json, ` +
	`delay => $3::text::interval, run_at => $4::text::timestamptz, options => $5::text::json) AS id`

type call struct {
	query string
	args  []any
}

// A recorder is a database that records the statements of its one connection.
type recorder struct {
	calls []call
	ends  []string
	err   error
}

func (r *recorder) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r *recorder) Driver() driver.Driver                        { return nil }
func (r *recorder) Begin() (driver.Tx, error)                    { return r, nil }
func (r *recorder) Close() error                                 { return nil }

func (r *recorder) Prepare(string) (driver.Stmt, error) {
	return nil, errors.New("nothing is prepared")
}

func (r *recorder) Commit() error {
	r.ends = append(r.ends, "commit")
	return nil
}

func (r *recorder) Rollback() error {
	r.ends = append(r.ends, "rollback")
	return nil
}

func (r *recorder) QueryContext(_ context.Context, query string, named []driver.NamedValue) (driver.Rows, error) {
	args := make([]any, len(named))
	for i, value := range named {
		args[i] = value.Value
	}
	r.calls = append(r.calls, call{query, args})
	if r.err != nil {
		return nil, r.err
	}
	return &oneRow{}, nil
}

// oneRow has the id of a job.
type oneRow struct{ isRead bool }

func (o *oneRow) Columns() []string { return []string{"id"} }
func (o *oneRow) Close() error      { return nil }

func (o *oneRow) Next(into []driver.Value) error {
	if o.isRead {
		return io.EOF
	}
	o.isRead, into[0] = true, "j1"
	return nil
}

func record(t *testing.T) (*recorder, *sql.DB) {
	t.Helper()
	recorder := &recorder{}
	db := sql.OpenDB(recorder)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return recorder, db
}

func TestAnEnqueueInATransactionIsOneCallOfIt(t *testing.T) {
	recorder, db := record(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	options := &tidegate.EnqueueOptions{
		Delay: 90500 * time.Millisecond, Priority: tidegate.Ptr(int64(7)),
		ExpiresAt: time.Unix(0, 0), Headers: map[string]string{"tenant": "a"},
		Unique: &api.Unique{Key: "order-17", While: "live"},
	}
	id, err := tidegate.NewJobType[letter]("letter").EnqueueIn(t.Context(), tx, letter{"ann", 2}, options)
	if err != nil || id != "j1" {
		t.Fatalf("%q %v", id, err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if len(recorder.calls) != 1 || recorder.calls[0].query != enqueueCall || !reflect.DeepEqual(recorder.ends, []string{"rollback"}) {
		t.Fatalf("%+v", recorder)
	}
	args := recorder.calls[0].args
	if !reflect.DeepEqual(args[:4], []any{"letter", `{"to":"ann","pages":2}`, "90.500 seconds", nil}) {
		t.Errorf("%q", args)
	}
	var rest map[string]any
	if err := json.Unmarshal([]byte(args[4].(string)), &rest); err != nil {
		t.Fatal(err)
	}
	if wanted := "1970-01-01T00:00:00.000Z"; len(rest) != 4 || rest["priority"] != 7.0 || rest["expires_at"] != wanted ||
		!reflect.DeepEqual(rest["headers"], map[string]any{"tenant": "a"}) {
		t.Errorf("%v", rest)
	}
}

func TestAnEnqueueInATransactionWithoutOptionsHasTheirDefaults(t *testing.T) {
	recorder, db := record(t)
	if _, err := tidegate.EnqueueIn(t.Context(), db, "letter", nil, nil); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.FixedZone("", 3600))
	options := &tidegate.EnqueueOptions{RunAt: at}
	if _, err := tidegate.Schema("jobs_2").EnqueueIn(t.Context(), db, "letter", nil, options); err != nil {
		t.Fatal(err)
	}
	wanted := []call{
		{enqueueCall, []any{"letter", "null", nil, nil, "{}"}},
		{
			strings.Replace(enqueueCall, "tidegate", "jobs_2", 1),
			[]any{"letter", "null", nil, "2030-01-02T02:04:05.678Z", "{}"},
		},
	}
	if !reflect.DeepEqual(recorder.calls, wanted) {
		t.Errorf("%q", recorder.calls)
	}
}

func TestAWrongArgumentIsNamedBeforeAnythingIsSent(t *testing.T) {
	recorder, db := record(t)
	check := func(name string, schema tidegate.Schema, jobType string, data any, options tidegate.EnqueueOptions) {
		t.Helper()
		_, err := schema.EnqueueIn(t.Context(), db, jobType, data, &options)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, jobType := range []string{"", "a b", ".."} {
		check("job type", tidegate.DefaultSchema, jobType, nil, tidegate.EnqueueOptions{})
	}
	check("schema", `a".b`, "letter", nil, tidegate.EnqueueOptions{})
	check("data", tidegate.DefaultSchema, "letter", math.NaN(), tidegate.EnqueueOptions{})
	at := time.Unix(1, 0)
	for name, options := range map[string]tidegate.EnqueueOptions{
		"option ID":             {ID: "one"},
		"option Critical":       {Critical: true},
		"option IdempotencyKey": {IdempotencyKey: "k"},
		"Delay must not be neg": {Delay: -time.Second},
		"Delay must not be giv": {Delay: time.Second, RunAt: at},
		"option RunAt":          {RunAt: time.Unix(-1, 0)},
		"RunAt must be from":    {RunAt: at.AddDate(8030, 0, 0)},
		"not a JSON value":      {Attributes: map[string]any{"a": math.NaN()}},
	} {
		check(name, tidegate.DefaultSchema, "letter", nil, options)
	}
	if len(recorder.calls) != 0 {
		t.Errorf("%q", recorder.calls)
	}
}

func TestAnErrorOfTheDatabaseIsPassedThrough(t *testing.T) {
	recorder, db := record(t)
	recorder.err = errors.New("type: there is no job type letter")
	if _, err := tidegate.EnqueueIn(t.Context(), db, "letter", nil, nil); err != recorder.err {
		t.Errorf("%v", err)
	}
}

func TestAnEnqueueInATransactionCarriesTheTraceOn(t *testing.T) {
	ctx := tidegate.WithTraceparent(t.Context(), "00-1-2-01")
	for wanted, headers := range map[string]map[string]string{
		`{"headers":{"traceparent":"00-1-2-01"}}`:              nil,
		`{"headers":{"tenant":"a","traceparent":"00-1-2-01"}}`: {"tenant": "a"},
		`{"headers":{"Traceparent":"00-3-4-01"}}`:              {"Traceparent": "00-3-4-01"},
	} {
		options := &tidegate.EnqueueOptions{Headers: headers}
		_, args, err := tidegate.DefaultSchema.Statement(ctx, "letter", nil, options)
		if err != nil || args[4] != wanted {
			t.Errorf("%v %v", args, err)
		}
	}
}
