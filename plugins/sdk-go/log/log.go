// Package log writes lines for the plugin's author: `tidegate plugin logs` shows them. The server
// keeps at most 100 lines and 16 KiB of each call, and at most 4 KiB of a line.
package log

import "fmt"

//go:wasmimport tidegate:plugin/log@0.2.0 write
func write(level uint32, message string)

// Debug writes a line at level `debug`. The arguments are those of fmt.Sprintf.
func Debug(format string, values ...any) { write(0, fmt.Sprintf(format, values...)) }

// Info writes a line at level `info`. The arguments are those of fmt.Sprintf.
func Info(format string, values ...any) { write(1, fmt.Sprintf(format, values...)) }

// Warn writes a line at level `warn`. The arguments are those of fmt.Sprintf.
func Warn(format string, values ...any) { write(2, fmt.Sprintf(format, values...)) }

// Error writes a line at level `error`. The arguments are those of fmt.Sprintf.
func Error(format string, values ...any) { write(3, fmt.Sprintf(format, values...)) }
