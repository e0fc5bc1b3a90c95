// Package log writes lines for the plugin's author: `tidegate plugin logs` shows them. The server
// keeps at most 100 lines and 16 KiB of each call, and at most 4 KiB of a line.
package log

import (
	"fmt"

	"example.com/my-plugin/sdk/internal/abi"
)

//go:wasmimport tidegate:plugin/log@0.2.0 write
func write(level uint32, message string)

func line(level uint32, format string, values []any) {
	write(level, abi.Valid(fmt.Sprintf(format, values...)))
}

// Debug writes a line at level `debug`. The arguments are those of fmt.Sprintf.
func Debug(format string, values ...any) { line(0, format, values) }

// Info writes a line at level `info`. The arguments are those of fmt.Sprintf.
func Info(format string, values ...any) { line(1, format, values) }

// Warn writes a line at level `warn`. The arguments are those of fmt.Sprintf.
func Warn(format string, values ...any) { line(2, format, values) }

// Error writes a line at level `error`. The arguments are those of fmt.Sprintf.
func Error(format string, values ...any) { line(3, format, values) }
