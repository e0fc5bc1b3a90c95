// Package throttler exports a throttler, which decides whether due jobs start now.
package throttler

import (
	"errors"
	"fmt"
	"time"

	"example.com/my-plugin/sdk/internal/abi"
	"example.com/my-plugin/sdk/internal/contract"
	"example.com/my-plugin/sdk/state"
)

type (
	// Job is a candidate.
	Job = contract.Job
	// Attribute is one attribute of a job.
	Attribute = contract.Attribute
	// Attributes are the attributes of a job, sorted by name.
	Attributes = contract.Attributes
	// Failure is an attempt that failed.
	Failure = contract.Failure
	// Problem is an error in a configuration.
	Problem = contract.Problem
	// State is the state of the throttler in one queue. The package state has the errors of Set.
	State = state.State
)

// Throttler is a throttler whose configuration is a C. encoding/json/v2 parses the configuration.
// A field that C does not have is an error.
//
// A throttler receives only what it declares.
type Throttler[C any] struct {
	// About is a sentence for operators.
	About string
	// ConfigSchema is the JSON Schema of the configuration, as JSON text. Empty if there is none.
	ConfigSchema string
	// StateVersion is the version of the state's format. Raise it when a new version of the plugin
	// cannot read the old state. 0 for a throttler without state.
	StateVersion uint32
	// GroupBy has the attributes by which the throttler groups the running set. `*` permits any,
	// for a throttler whose configuration names them.
	GroupBy []string
	// NeedsRunningJobs is whether the throttler calls Running.Page.
	NeedsRunningJobs bool
	// NeedsData is whether the throttler reads the data of jobs.
	NeedsData bool
	// NeedsEnded is whether the throttler reads Round.Ended. The queue then also calls it when
	// attempts ended and there are no candidates.
	NeedsEnded bool
	// NeedsEarlier is whether the throttler reads Job.Earlier.
	NeedsEarlier bool
	// WaitingBy has the attributes by which the throttler groups what waits: at most 2, which the
	// queue's `partition_by` and `partition_then_by` name. `*` permits both.
	WaitingBy []string
	// Check returns the errors of a configuration that was parsed. Empty if it is valid. A
	// throttler may have none.
	Check func(config C) []Problem
	// Decide decides on candidates: one decision for each, in their order.
	//
	// They are in the queue's order, and each of them alone fits the queue's limits. round.Running
	// does not contain the jobs that this call runs, so count them.
	//
	// After an error or a panic, the queue's `on_failure` decides on the candidates, and users see
	// the message.
	Decide func(config C, round *Round, candidates []*Job) (Answer, error)
}

// Answer is the answer of a call.
type Answer struct {
	// Decisions has one decision for each candidate, in their order.
	Decisions []Decision
	// More is whether jobs further back in the queue may run too. The same tick then offers the
	// next page of candidates.
	More bool
}

// Round has the inputs of a decision, in addition to the configuration and the candidates.
type Round struct {
	// Queue is the queue's name.
	Queue string
	// Now is the time of the decision. There is no other clock.
	Now time.Time
	// Seed differs between calls, and is recorded with the call. The package random begins with it.
	Seed uint64
	// Concurrency is the queue's own concurrency, if it has one.
	Concurrency *uint32
	// Room is how many jobs workers can take now.
	Room uint32
	// Ended has the attempts that ended since the last answer that counted, if the throttler
	// declares NeedsEnded. At most 1000.
	Ended []Ended
	// Running has the running jobs, without the candidates.
	Running Running
	// Waiting is what waits in the queue, by the attributes in WaitingBy.
	Waiting Waiting
	// State is the state that the last committed call left.
	State State
}

// Ended is an attempt of the queue that ended.
type Ended struct {
	ID, Type string
	Priority int32
	// Weight is the capacity units that the job took.
	Weight uint32
	Attributes
	// TargetHost is the host of the URL that received the job, or empty.
	TargetHost         string
	Attempt            uint32
	StartedAt, EndedAt time.Time
	// Succeeded is false for an attempt that failed or was cancelled.
	Succeeded bool
	// Reason is why the attempt failed. Empty if it was cancelled.
	Reason string
	// Message is empty if there is none.
	Message string
	// Status is the HTTP status of the target's response, or 0.
	Status uint16
	// Details are what the worker reported, as JSON text. Empty if there are none.
	Details string
	// NotBefore is the earliest next attempt that the worker or the target requested. The zero time
	// if there is none.
	NotBefore time.Time
}

const endedBytes = 128

func readEnded(at abi.Address) Ended {
	return Ended{
		ID:         at.Text(0),
		Type:       at.Text(8),
		Priority:   at.Int32(16),
		Weight:     at.Uint32(20),
		Attributes: contract.ReadAttributes(at, 24),
		TargetHost: at.OptionalText(32),
		Attempt:    at.Uint32(44),
		StartedAt:  at.Time(48),
		EndedAt:    at.Time(56),
		Succeeded:  at.Uint8(64) != 0,
		Reason:     at.OptionalText(68),
		Message:    at.OptionalText(80),
		Status:     at.OptionalUint16(92),
		Details:    at.OptionalText(96),
		NotBefore:  at.OptionalTime(112),
	}
}

// Exported has the exported throttler, without the type of its configuration.
var exported struct {
	description contract.Description
	check       func(config string) []Problem
	decide      func(config string, round *Round, candidates []*Job) (Answer, error)
}

// Export makes the component's throttler. Call it in `init`.
func Export[C any](plugin Throttler[C]) {
	exported.description = contract.Description{
		About:            plugin.About,
		ConfigSchema:     plugin.ConfigSchema,
		StateVersion:     plugin.StateVersion,
		GroupBy:          plugin.GroupBy,
		NeedsRunningJobs: plugin.NeedsRunningJobs,
		NeedsData:        plugin.NeedsData,
		NeedsEnded:       plugin.NeedsEnded,
		NeedsEarlier:     plugin.NeedsEarlier,
		WaitingBy:        plugin.WaitingBy,
	}
	exported.check = func(config string) []Problem { return contract.Check(config, plugin.Check) }
	exported.decide = func(text string, round *Round, candidates []*Job) (Answer, error) {
		config, err := contract.ConfigOfCall[C](text)
		if err != nil {
			return Answer{}, err
		}
		if plugin.Decide == nil {
			return Answer{}, errors.New("the throttler has no Decide")
		}
		answer, err := plugin.Decide(config, round, candidates)
		if err == nil && len(answer.Decisions) != len(candidates) {
			err = fmt.Errorf("Decide returned %d decisions on %d candidates",
				len(answer.Decisions), len(candidates))
		}
		return answer, err
	}
}

//go:wasmexport tidegate:plugin/throttle@0.2.0#describe
func describe() uint32 { return uint32(exported.description.Write()) }

//go:wasmexport tidegate:plugin/throttle@0.2.0#check-config
func checkConfig(config, bytes uint32) uint32 {
	return uint32(contract.WriteProblems(exported.check(abi.Text(config, bytes))))
}

//go:wasmexport tidegate:plugin/throttle@0.2.0#decide
func decide(
	queue, queueBytes uint32, now, seed uint64, config, configBytes uint32,
	hasConcurrency, concurrency, room, ended, endedCount uint32,
	candidates, candidateCount uint32,
) uint32 {
	round := &Round{
		Queue: abi.Text(queue, queueBytes),
		Now:   abi.Time(now),
		Seed:  seed,
		Room:  room,
		Ended: abi.List(abi.Address(ended), endedCount, endedBytes, readEnded),
	}
	if hasConcurrency != 0 {
		round.Concurrency = &concurrency
	}
	jobs := abi.List(abi.Address(candidates), candidateCount, contract.JobBytes, contract.ReadJob)
	var answer Answer
	err := contract.Guard(func() (err error) {
		answer, err = exported.decide(abi.Text(config, configBytes), round, jobs)
		return err
	})
	result := abi.NewBlock(16)
	if err != nil {
		result.Uint8(0, 1)
		result.Text(4, err.Error())
		return uint32(result.Address())
	}
	abi.WriteList(result, 4, answer.Decisions, decisionBytes, writeDecision)
	result.Bool(12, answer.More)
	return uint32(result.Address())
}
