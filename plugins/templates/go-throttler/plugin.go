// At most `limit` jobs of each type at a time. Change it into your own rule.
package main

import "example.com/my-plugin/sdk/throttler"

// Config is the configuration of a queue.
type Config struct {
	Limit uint64 `json:"limit"`
}

func init() {
	throttler.Export(throttler.Throttler[Config]{
		About:  "At most `limit` jobs of each type at a time.",
		Check:  check,
		Decide: decide,
	})
}

func check(config Config) []throttler.Problem {
	if config.Limit == 0 {
		return []throttler.Problem{{Path: "/limit", Message: "must be a whole number of at least 1"}}
	}
	return nil
}

func decide(
	config Config, round *throttler.Round, candidates []*throttler.Job,
) (throttler.Answer, error) {
	// The running jobs, and those that this call runs.
	used := round.Running.Weights(throttler.ByJobType)
	var decisions []throttler.Decision
	for _, job := range candidates {
		weight := used[job.Type] + uint64(job.Weight)
		if weight > config.Limit {
			reason := "the limit for " + job.Type + " jobs is reached"
			decisions = append(decisions, throttler.Hold(reason))
			continue
		}
		used[job.Type] = weight
		decisions = append(decisions, throttler.Run())
	}
	return throttler.Answer{Decisions: decisions, More: true}, nil
}

// The server calls the exported functions, not this one.
func main() {}
