// Package state has the state of a plugin in one queue. Round.State of a throttler and Call.State of
// a retry strategy are one.
package state

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"time"

	"example.com/my-plugin/sdk/internal/abi"
)

//go:wasmimport tidegate:plugin/state@0.2.0 get
func stateGet(key string, result uint32)

//go:wasmimport tidegate:plugin/state@0.2.0 set
func stateSet(key, value string, expires uint32, expiresAt uint64, result uint32)

//go:wasmimport tidegate:plugin/state@0.2.0 delete
func stateDelete(key string)

//go:wasmimport tidegate:plugin/state@0.2.0 keys
func stateKeys(prefix string, result uint32)

// The errors of State.Set, in the order of the contract.
var (
	ErrInvalidKey   = errors.New("the key is empty, or has more than 128 bytes")
	ErrValueTooLong = errors.New("the value has more than 16 KiB")
	ErrFull         = errors.New("the state would have more than 256 KiB")
)

// State is the state of the plugin in one queue. Its changes are committed only if the call
// succeeds. Keys and values are text: bytes that are not UTF-8 become U+FFFD.
type State struct{}

// Get returns the value of a key, and whether it has one.
func (State) Get(key string) (value string, found bool) {
	stateGet(abi.Valid(key), uint32(abi.ResultAddress()))
	result := abi.ResultAddress()
	return result.OptionalText(0), result.Uint8(0) != 0
}

// Set sets the value of a key. The error is ErrInvalidKey, ErrValueTooLong or ErrFull.
func (s State) Set(key, value string) error { return s.SetUntil(key, value, time.Time{}) }

// SetUntil sets the value of a key. From a time on it counts as deleted. The zero time means never.
// The error is ErrInvalidKey, ErrValueTooLong or ErrFull.
func (State) SetUntil(key, value string, expiresAt time.Time) error {
	var expires uint32
	var timestamp uint64
	if !expiresAt.IsZero() {
		expires, timestamp = 1, abi.Timestamp(expiresAt)
	}
	stateSet(abi.Valid(key), abi.Valid(value), expires, timestamp, uint32(abi.ResultAddress()))
	result := abi.ResultAddress()
	if result.Uint8(0) == 0 {
		return nil
	}
	reasons := [...]error{ErrInvalidKey, ErrValueTooLong, ErrFull}
	return fmt.Errorf("state %.128s: %w", key, reasons[result.Uint8(1)])
}

// Delete deletes a key.
func (State) Delete(key string) { stateDelete(abi.Valid(key)) }

// Keys returns the keys that begin with a prefix, sorted.
func (State) Keys(prefix string) []string {
	stateKeys(abi.Valid(prefix), uint32(abi.ResultAddress()))
	result := abi.ResultAddress()
	return abi.List(abi.Address(result.Uint32(0)), result.Uint32(4), 8,
		func(at abi.Address) string { return at.Text(0) })
}

// Load parses the value of a key, which Save wrote. It returns whether the key has a value. The
// error says what cannot be parsed.
func (s State) Load(key string, value any) (found bool, err error) {
	text, found := s.Get(key)
	if !found {
		return false, nil
	}
	if err := json.Unmarshal([]byte(text), value); err != nil {
		return true, fmt.Errorf("state %.128s: %w", key, err)
	}
	return true, nil
}

// Save sets a key to a value as JSON text. The error is one of Set, or says why the value has no
// JSON form.
func (s State) Save(key string, value any) error { return s.SaveUntil(key, value, time.Time{}) }

// SaveUntil is Save for a value that counts as deleted from a time on.
func (s State) SaveUntil(key string, value any, expiresAt time.Time) error {
	text, err := json.Marshal(value, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("state %.128s: %w", key, err)
	}
	return s.SetUntil(key, string(text), expiresAt)
}
