package contract

import (
	"fmt"
	"runtime/debug"

	"example.com/my-plugin/sdk/internal/abi"
	"example.com/my-plugin/sdk/log"
)

// Description has the declarations of a plugin in one role. Throttler and Strategy document them.
type Description struct {
	About, ConfigSchema                                   string
	StateVersion                                          uint32
	GroupBy, WaitingBy                                    []string
	NeedsRunningJobs, NeedsData, NeedsEnded, NeedsEarlier bool
}

// Write writes the answer of `describe`.
func (d *Description) Write() abi.Address {
	answer := abi.NewBlock(44)
	answer.Text(0, d.About)
	answer.OptionalText(8, d.ConfigSchema)
	answer.Uint32(20, d.StateVersion)
	abi.WriteList(answer, 24, d.GroupBy, 8, func(b abi.Block, name string) { b.Text(0, name) })
	answer.Bool(32, d.NeedsRunningJobs)
	answer.Bool(33, d.NeedsData)
	answer.Bool(34, d.NeedsEnded)
	answer.Bool(35, d.NeedsEarlier)
	abi.WriteList(answer, 36, d.WaitingBy, 8, func(b abi.Block, name string) { b.Text(0, name) })
	return answer.Address()
}

// Guard calls the author's code. A panic is logged with its stack, and becomes an error.
func Guard(call func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			log.Error("panic: %v\n%s", cause, debug.Stack())
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return call()
}
