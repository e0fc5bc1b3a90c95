// Package clock has the clock of a call, which does not move, and the time zones of the server.
package clock

import (
	"errors"
	"time"

	"example.com/my-plugin/sdk/internal/abi"
)

//go:wasmimport tidegate:plugin/clock@0.2.0 now
func now() uint64

//go:wasmimport tidegate:plugin/clock@0.2.0 local
func local(zone string, at uint64, result uint32)

//go:wasmimport tidegate:plugin/clock@0.2.0 instant
func instant(zone string, year int32, month, day, hour, minute, second, ms, result uint32)

// LocalTime is a date and a time of day, as a calendar and a clock on a wall show them.
type LocalTime struct {
	Year int32
	// Month is 1 to 12.
	Month time.Month
	// Day is 1 to 31.
	Day                  uint8
	Hour, Minute, Second uint8
	// Millisecond is 0 to 999.
	Millisecond uint16
}

// Shown is what a time zone shows at an instant.
type Shown struct {
	Time    LocalTime
	Weekday time.Weekday
	// Offset is how far local time is ahead of UTC.
	Offset time.Duration
}

// Now returns the time of the decision, in UTC. It is 1970-01-01 while a configuration is checked.
func Now() time.Time { return abi.Time(now()) }

// Local returns what a time zone shows at an instant. The zone is a name of the IANA time zone
// database, such as `Europe/Berlin`. The error names the wrong argument.
func Local(zone string, at time.Time) (Shown, error) {
	local(abi.Valid(zone), abi.Timestamp(at), uint32(abi.ResultAddress()))
	result := abi.ResultAddress()
	if result.Uint8(0) != 0 {
		return Shown{}, errors.New(result.Text(4))
	}
	return Shown{
		Time: LocalTime{
			Year: result.Int32(4), Month: time.Month(result.Uint8(8)), Day: result.Uint8(9),
			Hour: result.Uint8(10), Minute: result.Uint8(11), Second: result.Uint8(12),
			Millisecond: result.Uint16(14),
		},
		// The contract counts from Monday, 1, to Sunday, 7.
		Weekday: time.Weekday(result.Uint8(16) % 7),
		Offset:  time.Duration(result.Int32(20)) * time.Second,
	}, nil
}

// Instant returns when a time zone shows a time. If it shows the time twice, the first instant. If
// it skips the time, the instant of the change. The error names the wrong argument.
func Instant(zone string, at LocalTime) (time.Time, error) {
	instant(abi.Valid(zone), at.Year, uint32(at.Month)&0xff, uint32(at.Day), uint32(at.Hour),
		uint32(at.Minute), uint32(at.Second), uint32(at.Millisecond), uint32(abi.ResultAddress()))
	result := abi.ResultAddress()
	if result.Uint8(0) != 0 {
		return time.Time{}, errors.New(result.Text(8))
	}
	return result.Time(8), nil
}
