package throttler

import (
	"time"

	"example.com/my-plugin/sdk/internal/abi"
)

//go:wasmimport tidegate:plugin/waiting@0.2.0 groups
func waitingGroups(by string, result uint32)

//go:wasmimport tidegate:plugin/waiting@0.2.0 others
func waitingOthers(result uint32)

//go:wasmimport tidegate:plugin/waiting@0.2.0 counted-at
func waitingCountedAt(result uint32)

// WaitingGroup has the waiting jobs with one value of an attribute.
type WaitingGroup struct {
	Value  string
	Count  uint32
	Weight uint64
	// OldestDueAt is when the first of them was due.
	OldestDueAt time.Time
	// AtLeast is whether there may be more: counting stopped at a bound.
	AtLeast bool
}

// Waiting is what waits in the queue: estimates by the attributes in WaitingBy. A group of each
// candidate is there.
type Waiting struct{}

const waitingGroupBytes = 40

func readWaitingGroup(at abi.Address) WaitingGroup {
	return WaitingGroup{
		Value:       at.Text(0),
		Count:       at.Uint32(8),
		Weight:      at.Uint64(16),
		OldestDueAt: at.Time(24),
		AtLeast:     at.Uint8(32) != 0,
	}
}

// Groups returns the groups of the values of an attribute, sorted by value.
func (Waiting) Groups(by string) []WaitingGroup {
	waitingGroups(abi.Valid(by), uint32(abi.ResultAddress()))
	result := abi.ResultAddress()
	return abi.List(abi.Address(result.Uint32(0)), result.Uint32(4), waitingGroupBytes,
		readWaitingGroup)
}

// Others returns the jobs of all partitions that are in no group, because there are too many. Nil
// if there are none.
func (Waiting) Others() *WaitingGroup {
	waitingOthers(uint32(abi.ResultAddress()))
	result := abi.ResultAddress()
	if result.Uint8(0) == 0 {
		return nil
	}
	group := readWaitingGroup(result + 8)
	return &group
}

// CountedAt returns when the queue was counted. The zero time if that has not happened yet.
func (Waiting) CountedAt() time.Time {
	waitingCountedAt(uint32(abi.ResultAddress()))
	return abi.ResultAddress().OptionalTime(0)
}
