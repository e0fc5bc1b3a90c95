// Package contract has what throttlers and retry strategies share. Authors use it by the names that
// the packages throttler and retry give it.
package contract

import (
	"encoding/json/v2"
	"fmt"
	"time"

	"example.com/my-plugin/sdk/internal/abi"
)

// Attribute is one attribute of a job. A number has its shortest decimal form (`2`, `0.5`). A
// boolean is `true` or `false`.
type Attribute struct{ Name, Value string }

// Attributes are the attributes of a job, sorted by name.
type Attributes []Attribute

// Attribute returns the value of an attribute, and whether the job has it.
func (a Attributes) Attribute(name string) (value string, found bool) {
	for _, attribute := range a {
		if attribute.Name == name {
			return attribute.Value, true
		}
	}
	return "", false
}

// Failure is an attempt that failed.
type Failure struct {
	// Attempt is the number of the attempt, from 1.
	Attempt uint32
	// Reason is `failed`, `timeout`, `lease_expired`, `connection_lost` or `not_delivered`.
	Reason string
	// Message is empty if there is none.
	Message string
	// Status is the HTTP status of the target's response, or 0.
	Status uint16
	// Details are what the worker reported, as JSON text. Empty if there are none.
	Details            string
	StartedAt, EndedAt time.Time
	// NotBefore is the earliest next attempt that the worker or the target requested. The zero time
	// if there is none.
	NotBefore time.Time
}

// Job is a candidate of a throttler, or the failed job of a retry strategy.
type Job struct {
	ID   string
	Type string
	// Priority: jobs with a lower number start first.
	Priority int32
	// Weight is the capacity units that the job takes.
	Weight uint32
	Attributes
	// Attempt is the number of an attempt, from 1. For a throttler: the attempt that would start.
	// For a retry strategy: the attempt that failed.
	Attempt uint32
	// Attempts is the job's `max_attempts`.
	Attempts  uint32
	CreatedAt time.Time
	// RunAt is when the job is, or was, due. For a retry strategy: the earliest time of the next
	// attempt.
	RunAt time.Time
	// ExpiresAt: no attempt starts after this time. The zero time if there is none.
	ExpiresAt time.Time
	// DeadlineAt: the job ends `failed` at this time if it has not ended before. The zero time if
	// there is none.
	DeadlineAt time.Time
	// TargetHost is the host of the URL that receives the job, in lower case. Empty for a job that
	// workers lease.
	TargetHost string
	// ReplayOf is the id of the job that this one runs again, or empty.
	ReplayOf string
	// CorrelationKey is the key by which a later event or request finds the job, or empty.
	CorrelationKey string
	// Earlier has the failed attempts before Attempt, oldest first: the latest 50. Empty for a
	// throttler without NeedsEarlier.
	Earlier []Failure
}

//go:wasmimport tidegate:plugin/jobs@0.2.0 data
func data(id string, result uint32)

// Data returns the job's data as JSON text. It is empty if the job has none, or if the plugin does
// not declare NeedsData.
func (j *Job) Data() string {
	data(j.ID, uint32(abi.ResultAddress()))
	return abi.ResultAddress().OptionalText(0)
}

// ReadData parses the job's data into a value, as encoding/json/v2 does. It returns whether the job
// has data. The error says what cannot be parsed.
func (j *Job) ReadData(value any) (found bool, err error) {
	text := j.Data()
	if text == "" {
		return false, nil
	}
	if err := json.Unmarshal([]byte(text), value); err != nil {
		return true, fmt.Errorf("data of job %s: %w", j.ID, err)
	}
	return true, nil
}

// The sizes of records in the contract, in bytes.
const (
	AttributeBytes = 16
	FailureBytes   = 72
	JobBytes       = 136
	problemBytes   = 16
)

// ReadAttributes reads a list of attributes.
func ReadAttributes(at abi.Address, offset uint32) Attributes {
	return abi.List(abi.Address(at.Uint32(offset)), at.Uint32(offset+4), AttributeBytes,
		func(at abi.Address) Attribute { return Attribute{at.Text(0), at.Text(8)} })
}

// ReadFailure reads a failure.
func ReadFailure(at abi.Address) Failure {
	return Failure{
		Attempt:   at.Uint32(0),
		Reason:    at.Text(4),
		Message:   at.OptionalText(12),
		Status:    at.OptionalUint16(24),
		Details:   at.OptionalText(28),
		StartedAt: at.Time(40),
		EndedAt:   at.Time(48),
		NotBefore: at.OptionalTime(56),
	}
}

// ReadJob reads a job.
func ReadJob(at abi.Address) *Job {
	return &Job{
		ID:             at.Text(0),
		Type:           at.Text(8),
		Priority:       at.Int32(16),
		Weight:         at.Uint32(20),
		Attributes:     ReadAttributes(at, 24),
		Attempt:        at.Uint32(32),
		Attempts:       at.Uint32(36),
		CreatedAt:      at.Time(40),
		RunAt:          at.Time(48),
		ExpiresAt:      at.OptionalTime(56),
		DeadlineAt:     at.OptionalTime(72),
		TargetHost:     at.OptionalText(88),
		ReplayOf:       at.OptionalText(100),
		CorrelationKey: at.OptionalText(112),
		Earlier: abi.List(abi.Address(at.Uint32(124)), at.Uint32(128), FailureBytes,
			ReadFailure),
	}
}
