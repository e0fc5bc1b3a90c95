package throttler

import (
	"time"

	"example.com/my-plugin/sdk/internal/abi"
)

// Decision is what happens to a candidate. Run, Hold, HoldUntil, Reschedule and Drop return one.
type Decision struct {
	action action
	// Until or at.
	at     time.Time
	reason string
}

type action uint8

// The actions, in the order of the contract. HoldUntil is a hold with a time.
const (
	actionRun action = iota
	actionHold
	actionReschedule
	actionDrop
)

// Run starts the job now.
func Run() Decision { return Decision{action: actionRun} }

// Hold keeps the job in the queue. The next tick of the queue offers it again. Users see the
// reason; at most 200 bytes of it are kept.
func Hold(reason string) Decision { return Decision{action: actionHold, reason: reason} }

// HoldUntil keeps the job in the queue. The next tick offers it again, at the latest at a time that
// is after now and within 366 days.
func HoldUntil(until time.Time, reason string) Decision {
	return Decision{action: actionHold, at: until, reason: reason}
}

// Reschedule sets the job's due time, which is after now and within 366 days.
func Reschedule(at time.Time, reason string) Decision {
	return Decision{action: actionReschedule, at: at, reason: reason}
}

// Drop ends the job as `dropped`.
func Drop(reason string) Decision { return Decision{action: actionDrop, reason: reason} }

const decisionBytes = 40

func writeDecision(b abi.Block, decision Decision) {
	b.Uint8(0, uint8(decision.action))
	switch {
	case decision.action == actionReschedule:
		b.Time(8, decision.at)
	case !decision.at.IsZero():
		b.Uint8(8, 1)
		b.Time(16, decision.at)
	}
	b.OptionalText(24, decision.reason)
}
