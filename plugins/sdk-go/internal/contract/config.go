package contract

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"reflect"
	"strconv"

	"example.com/my-plugin/sdk/internal/abi"
)

// Problem is an error in a configuration.
type Problem struct {
	// Path is a JSON pointer to the wrong part (`/shares/east`). Empty for the whole configuration.
	Path    string
	Message string
}

// Parse parses a configuration. A field that C does not have is an error.
func Parse[C any](text string) (config C, problem *Problem) {
	err := json.Unmarshal([]byte(text), &config, json.RejectUnknownMembers(true))
	if err == nil {
		return config, nil
	}
	semantic, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return config, &Problem{Message: err.Error()}
	}
	problem = &Problem{Path: string(semantic.JSONPointer)}
	switch {
	case errors.Is(err, json.ErrUnknownName):
		problem.Message = "is not a field of the configuration"
	case semantic.GoType != nil:
		problem.Message = "must be " + kind(semantic.GoType)
		isNumber := errors.Is(err, strconv.ErrSyntax) || errors.Is(err, strconv.ErrRange)
		if semantic.Err != nil && !isNumber {
			problem.Message += ": " + semantic.Err.Error()
		}
	default:
		problem.Message = err.Error()
	}
	return config, problem
}

// Kind names the JSON values of a type.
func kind(of reflect.Type) string {
	switch of.Kind() {
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number of at least 0, of at most %d bits", of.Bits())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of at most %d bits", of.Bits())
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Pointer:
		return kind(of.Elem())
	default:
		return "a " + of.String()
	}
}

// Check returns the problems of a configuration: those of parsing it, or those that check finds.
func Check[C any](text string, check func(C) []Problem) (problems []Problem) {
	config, problem := Parse[C](text)
	if problem != nil {
		return []Problem{*problem}
	}
	if check == nil {
		return nil
	}
	if err := Guard(func() error { problems = check(config); return nil }); err != nil {
		return []Problem{{Message: err.Error()}}
	}
	return problems
}

// ConfigOfCall parses the configuration of a call.
func ConfigOfCall[C any](text string) (C, error) {
	config, problem := Parse[C](text)
	if problem == nil {
		return config, nil
	}
	if problem.Path == "" {
		return config, fmt.Errorf("configuration: %s", problem.Message)
	}
	return config, fmt.Errorf("configuration %s: %s", problem.Path, problem.Message)
}

// WriteProblems writes the answer of `check-config`.
func WriteProblems(problems []Problem) abi.Address {
	answer := abi.NewBlock(8)
	abi.WriteList(answer, 0, problems, problemBytes, func(b abi.Block, problem Problem) {
		b.Text(0, problem.Path)
		b.Text(8, problem.Message)
	})
	return answer.Address()
}
