package throttler

import (
	"time"

	"example.com/my-plugin/sdk/internal/abi"
	"example.com/my-plugin/sdk/internal/contract"
)

//go:wasmimport tidegate:plugin/running@0.2.0 count
func count() uint32

//go:wasmimport tidegate:plugin/running@0.2.0 weight
func weight() uint64

//go:wasmimport tidegate:plugin/running@0.2.0 groups
func groups(dimension uint32, attribute string, result uint32)

//go:wasmimport tidegate:plugin/running@0.2.0 in-group
func inGroup(dimension uint32, attribute, value string, result uint32)

//go:wasmimport tidegate:plugin/running@0.2.0 page
func page(offset, limit, result uint32)

// Dimension is the property that groups the running set: ByJobType, ByPriority or ByAttribute.
type Dimension struct {
	number    uint32
	attribute string
}

var (
	// ByJobType groups by job type.
	ByJobType = Dimension{number: 0}
	// ByPriority groups by priority.
	ByPriority = Dimension{number: 1}
)

// ByAttribute groups by an attribute, which the throttler declares in GroupBy.
func ByAttribute(name string) Dimension { return Dimension{number: 2, attribute: name} }

// Group has the jobs with one value of a dimension: their number and their total weight.
type Group struct {
	Value  string
	Count  uint32
	Weight uint64
}

// RunningJob is a granted job, whether started or not.
type RunningJob struct {
	ID, Type string
	Priority int32
	// Weight is 0 for a critical job, which takes no capacity.
	Weight   uint32
	Critical bool
	Attributes
	GrantedAt time.Time
}

// Running is the running set: the queue's granted jobs, whether started or not. The candidates of
// this call are not in it.
type Running struct{}

// Count returns the number of running jobs.
func (Running) Count() uint32 { return count() }

// Weight returns the total weight of the running jobs.
func (Running) Weight() uint64 { return weight() }

const (
	groupBytes      = 24
	runningJobBytes = 48
)

func readGroup(at abi.Address) Group {
	return Group{Value: at.Text(0), Count: at.Uint32(8), Weight: at.Uint64(16)}
}

// Groups returns the groups of all values of a dimension, sorted by value. Jobs without the
// attribute are in no group.
func (Running) Groups(by Dimension) []Group {
	groups(by.number, abi.Valid(by.attribute), uint32(abi.ResultAddress()))
	result := abi.ResultAddress()
	return abi.List(abi.Address(result.Uint32(0)), result.Uint32(4), groupBytes, readGroup)
}

// InGroup returns the group of one value of a dimension. Its count and weight are 0 if no job has
// the value.
func (Running) InGroup(by Dimension, value string) Group {
	inGroup(by.number, abi.Valid(by.attribute), abi.Valid(value), uint32(abi.ResultAddress()))
	return readGroup(abi.ResultAddress())
}

// Weights returns the running weight by the values of a dimension.
func (r Running) Weights(by Dimension) map[string]uint64 {
	weights := make(map[string]uint64)
	for _, group := range r.Groups(by) {
		weights[group.Value] = group.Weight
	}
	return weights
}

// Page returns running jobs, the earliest granted first. One page has at most 1000, and all pages
// of one call have at most 100,000. It needs NeedsRunningJobs.
func (Running) Page(offset, limit uint32) []RunningJob {
	page(offset, limit, uint32(abi.ResultAddress()))
	result := abi.ResultAddress()
	return abi.List(abi.Address(result.Uint32(0)), result.Uint32(4), runningJobBytes,
		func(at abi.Address) RunningJob {
			return RunningJob{
				ID:         at.Text(0),
				Type:       at.Text(8),
				Priority:   at.Int32(16),
				Weight:     at.Uint32(20),
				Critical:   at.Uint8(24) != 0,
				Attributes: contract.ReadAttributes(at, 28),
				GrantedAt:  at.Time(40),
			}
		})
}
