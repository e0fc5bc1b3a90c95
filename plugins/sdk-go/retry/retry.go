// Package retry exports a retry strategy, which decides what follows a failed attempt.
package retry

import (
	"errors"
	"time"

	"example.com/my-plugin/sdk/internal/abi"
	"example.com/my-plugin/sdk/internal/contract"
	"example.com/my-plugin/sdk/state"
)

type (
	// Job is the failed job.
	Job = contract.Job
	// Attribute is one attribute of a job.
	Attribute = contract.Attribute
	// Attributes are the attributes of a job, sorted by name.
	Attributes = contract.Attributes
	// Failure is an attempt that failed.
	Failure = contract.Failure
	// Problem is an error in a configuration.
	Problem = contract.Problem
	// State is the state of the strategy in one queue. The package state has the errors of Set.
	State = state.State
)

// Strategy is a retry strategy whose configuration is a C. encoding/json/v2 parses the
// configuration. A field that C does not have is an error.
type Strategy[C any] struct {
	// About is a sentence for operators.
	About string
	// ConfigSchema is the JSON Schema of the configuration, as JSON text. Empty if there is none.
	ConfigSchema string
	// StateVersion is the version of the state's format. Raise it when a new version of the plugin
	// cannot read the old state. 0 for a strategy without state.
	StateVersion uint32
	// NeedsData is whether the strategy reads the job's data.
	NeedsData bool
	// Check returns the errors of a configuration that was parsed. Empty if it is valid. A strategy
	// may have none.
	Check func(config C) []Problem
	// OnFailure decides what follows the failure last of job, whose earlier failures are in
	// job.Earlier. It is not called when no attempts are left.
	//
	// After an error or a panic, the built-in backoff decides, and users see the message.
	OnFailure func(config C, call *Call, job *Job, last Failure) (Verdict, error)
}

// Call has the inputs of a decision, in addition to the configuration and the failure.
type Call struct {
	// Queue is the name of the job's queue.
	Queue string
	// Now is the time of the decision. There is no other clock.
	Now time.Time
	// Seed differs between calls, and is recorded with the call. The package random begins with it.
	Seed uint64
	// State is the state of the strategy in the job's queue. It needs a StateVersion of at least 1.
	// Its changes are committed with the decision. If another decision changed it meanwhile, this one
	// is made again.
	State State
}

// Verdict is what follows a failed attempt. After, At and GiveUp return one.
type Verdict struct {
	retry   bool
	plan    Plan
	message string
}

// Plan has the next attempt, and what it changes.
type Plan struct {
	// At is when the next attempt is due: within 366 days, and at least 50 ms after the call.
	At time.Time
	// Data is JSON text that replaces the job's data. Empty keeps the data.
	Data string
	// Priority replaces the job's priority. Nil keeps it.
	Priority *int32
	// Weight replaces the job's weight. Nil keeps it.
	Weight *uint32
	// AttemptsLeft is how many attempts the job still has, including the next one: at least 1. 0
	// keeps the job's `max_attempts`.
	AttemptsLeft uint32
	// Timeout replaces the timeout of the job's attempts: 1 ms to a year. 0 keeps it.
	Timeout time.Duration
	// Target is a name in `retry_targets` of the job's type, or empty for the type's own target. Nil
	// keeps the current one.
	Target *string
}

// After retries after a wait.
func (c *Call) After(wait time.Duration) Verdict { return c.At(c.Now.Add(wait)) }

// At retries at a time.
func (c *Call) At(at time.Time) Verdict { return Retry(Plan{At: at}) }

// Retry retries by a plan.
func Retry(plan Plan) Verdict { return Verdict{retry: true, plan: plan} }

// GiveUp ends the job as `failed`. The message replaces the message of the failure, if it is not
// empty.
func GiveUp(message string) Verdict { return Verdict{message: message} }

// Exported has the exported strategy, without the type of its configuration.
var exported struct {
	description contract.Description
	check       func(config string) []Problem
	onFailure   func(config string, call *Call, job *Job, last Failure) (Verdict, error)
}

// Export makes the component's retry strategy. Call it in `init`.
func Export[C any](plugin Strategy[C]) {
	exported.description = contract.Description{
		About:        plugin.About,
		ConfigSchema: plugin.ConfigSchema,
		StateVersion: plugin.StateVersion,
		NeedsData:    plugin.NeedsData,
	}
	exported.check = func(config string) []Problem { return contract.Check(config, plugin.Check) }
	exported.onFailure = func(text string, call *Call, job *Job, last Failure) (Verdict, error) {
		config, err := contract.ConfigOfCall[C](text)
		if err != nil {
			return Verdict{}, err
		}
		if plugin.OnFailure == nil {
			return Verdict{}, errors.New("the retry strategy has no OnFailure")
		}
		return plugin.OnFailure(config, call, job, last)
	}
}

//go:wasmexport tidegate:plugin/retry@0.2.0#describe
func describe() uint32 { return uint32(exported.description.Write()) }

//go:wasmexport tidegate:plugin/retry@0.2.0#check-config
func checkConfig(config, bytes uint32) uint32 {
	return uint32(contract.WriteProblems(exported.check(abi.Text(config, bytes))))
}

// ContextBytes is the size of the first argument of `on-failure`.
const contextBytes = 32

// The arguments are in memory, because there are more than 16 numbers.
//
//go:wasmexport tidegate:plugin/retry@0.2.0#on-failure
func onFailure(arguments uint32) uint32 {
	at := abi.Address(arguments)
	call := &Call{Queue: at.Text(0), Now: at.Time(8), Seed: at.Uint64(16)}
	config := at.Text(24)
	job := contract.ReadJob(at + contextBytes)
	last := contract.ReadFailure(at + contextBytes + contract.JobBytes)
	var verdict Verdict
	err := contract.Guard(func() (err error) {
		verdict, err = exported.onFailure(config, call, job, last)
		return err
	})
	result := abi.NewBlock(96)
	switch {
	case err != nil:
		result.Uint8(0, 1)
		result.Text(8, err.Error())
	case verdict.retry:
		writePlan(result.At(16), &verdict.plan)
	default:
		result.Uint8(8, 1)
		result.OptionalText(16, verdict.message)
	}
	return uint32(result.Address())
}

func writePlan(b abi.Block, plan *Plan) {
	b.Time(0, plan.At)
	b.OptionalText(8, plan.Data)
	if plan.Priority != nil {
		b.Uint8(20, 1)
		b.Uint32(24, uint32(*plan.Priority))
	}
	if plan.Weight != nil {
		b.Uint8(28, 1)
		b.Uint32(32, *plan.Weight)
	}
	if plan.AttemptsLeft != 0 {
		b.Uint8(36, 1)
		b.Uint32(40, plan.AttemptsLeft)
	}
	if plan.Timeout != 0 {
		b.Uint8(48, 1)
		b.Uint64(56, uint64(max(plan.Timeout.Milliseconds(), 0)))
	}
	if plan.Target != nil {
		b.Uint8(64, 1)
		b.Text(68, *plan.Target)
	}
}
