// Gives up if the target is gone, and waits longer each time otherwise. Change it into your own
// rule.
package main

import (
	"math"
	"time"

	"example.com/my-plugin/sdk/retry"
)

// Config is the configuration of a job type.
type Config struct {
	BaseSeconds float64 `json:"base_seconds"`
}

func init() {
	retry.Export(retry.Strategy[Config]{
		About:     "Gives up what is gone, and waits longer each time for the rest.",
		Check:     check,
		OnFailure: onFailure,
	})
}

func check(config Config) []retry.Problem {
	if config.BaseSeconds <= 0 {
		return []retry.Problem{{Path: "/base_seconds", Message: "must be a number over 0"}}
	}
	return nil
}

func onFailure(
	config Config, call *retry.Call, job *retry.Job, last retry.Failure,
) (retry.Verdict, error) {
	if last.Status == 404 || last.Status == 410 {
		return retry.GiveUp("what it was for is gone"), nil
	}
	seconds := config.BaseSeconds * math.Pow(2, float64(job.Attempt-1))
	// A day at most.
	wait := time.Duration(min(seconds, 86400) * float64(time.Second))
	return call.After(wait), nil
}

// The server calls the exported functions, not this one.
func main() {}
