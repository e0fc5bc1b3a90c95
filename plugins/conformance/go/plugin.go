// The conformance plugin: it writes what it receives into its state, and answers as its
// configuration says. `cases` has the configurations and the expected texts.
package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/my-plugin/sdk/clock"
	"example.com/my-plugin/sdk/log"
	"example.com/my-plugin/sdk/metrics"
	"example.com/my-plugin/sdk/random"
	"example.com/my-plugin/sdk/retry"
	"example.com/my-plugin/sdk/state"
	"example.com/my-plugin/sdk/throttler"
)

// Config is the configuration of both roles.
type Config struct {
	// Show is what it writes into its state.
	Show []string `json:"show"`
	// Decide is what it decides: an action for each candidate, or one for a failed job.
	Decide       []string `json:"decide"`
	Attribute    *string  `json:"attribute"`
	Value        string   `json:"value"`
	Reason       string   `json:"reason"`
	Zone         string   `json:"zone"`
	At           uint64   `json:"at"`
	More         *bool    `json:"more"`
	Data         string   `json:"data"`
	Priority     *int32   `json:"priority"`
	Weight       *uint32  `json:"weight"`
	AttemptsLeft uint32   `json:"attempts_left"`
	Timeout      uint64   `json:"timeout"`
	Target       *string  `json:"target"`
}

func (c *Config) shows(what string) bool { return slices.Contains(c.Show, what) }

func (c *Config) action(index int) string {
	if index < len(c.Decide) {
		return c.Decide[index]
	}
	return ""
}

func (c *Config) attribute() string {
	if c.Attribute == nil {
		return "region"
	}
	return *c.Attribute
}

func (c *Config) at() time.Time { return time.UnixMilli(int64(c.At)) }

func check(config Config) []throttler.Problem {
	if config.attribute() == "" {
		return []throttler.Problem{{Path: "/attribute", Message: "must not be empty"}}
	}
	return nil
}

func init() {
	throttler.Export(throttler.Throttler[Config]{
		About:            "Shows all that a throttler receives.",
		StateVersion:     1,
		GroupBy:          []string{"*"},
		NeedsRunningJobs: true,
		NeedsData:        true,
		NeedsEnded:       true,
		NeedsEarlier:     true,
		WaitingBy:        []string{"*"},
		Check:            check,
		Decide:           decide,
	})
	retry.Export(retry.Strategy[Config]{
		About:        "Shows all that a retry strategy receives.",
		StateVersion: 1,
		NeedsData:    true,
		Check:        check,
		OnFailure:    onFailure,
	})
}

// Text returns a text, and a dash for an absent one.
func text(value string) string {
	if value == "" {
		return "-"
	}
	return value
}

func status(value uint16) string {
	if value == 0 {
		return "-"
	}
	return strconv.Itoa(int(value))
}

func instant(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return strconv.FormatInt(at.UnixMilli(), 10)
}

func joined(separator string, fields ...any) string {
	texts := make([]string, len(fields))
	for index, field := range fields {
		texts[index] = fmt.Sprint(field)
	}
	return strings.Join(texts, separator)
}

func list[T any](items []T, shown func(T) string) string {
	texts := make([]string, len(items))
	for index, item := range items {
		texts[index] = shown(item)
	}
	return strings.Join(texts, ";")
}

func failureText(failure throttler.Failure) string {
	return joined(",", failure.Attempt, failure.Reason, text(failure.Message),
		status(failure.Status), text(failure.Details), instant(failure.StartedAt),
		instant(failure.EndedAt), instant(failure.NotBefore))
}

func jobText(job *throttler.Job) string {
	return joined("|", job.ID, job.Type, job.Priority, job.Weight, job.Attempt, job.Attempts,
		instant(job.CreatedAt), instant(job.RunAt), instant(job.ExpiresAt),
		instant(job.DeadlineAt), text(job.TargetHost), text(job.ReplayOf),
		text(job.CorrelationKey))
}

func attribute(of throttler.Attributes, name string) string {
	if value, found := of.Attribute(name); found {
		return value
	}
	return "-"
}

// Common is what throttlers and retry strategies can use.
type common struct {
	config *Config
	state  throttler.State
	err    error
}

func (c *common) set(key, value string) { c.err = errors.Join(c.err, c.state.Set(key, value)) }

func (c *common) show(jobs ...*throttler.Job) {
	for _, job := range jobs {
		c.showJob(job)
	}
	if c.config.shows("state") {
		c.showState()
	}
	if c.config.shows("full") {
		c.showFull()
	}
	if c.config.shows("clock") {
		c.showClock()
	}
	if c.config.shows("wrong") {
		c.showWrong()
	}
	if c.config.shows("random") {
		c.set("random", fmt.Sprint(random.Next() != random.Next()))
	}
	if c.config.shows("metrics") {
		metrics.Add("conformance_calls", c.config.Value, 3)
		metrics.Set("conformance_level", c.config.Value, -0.5)
	}
	if c.config.shows("log") {
		log.Debug("%s", c.config.Reason)
		log.Info("%s", c.config.Reason)
		log.Warn("%s", c.config.Reason)
		log.Error("%s", c.config.Reason)
	}
}

func (c *common) showJob(job *throttler.Job) {
	if c.config.shows("jobs") {
		c.set("job "+job.ID, jobText(job))
	}
	if c.config.shows("attributes") {
		all := list(job.Attributes, func(own throttler.Attribute) string {
			return own.Name + "=" + own.Value
		})
		one := attribute(job.Attributes, c.config.attribute())
		c.set("attributes "+job.ID, joined("|", all, one, attribute(job.Attributes, "absent")))
	}
	if c.config.shows("earlier") {
		c.set("earlier "+job.ID, list(job.Earlier, failureText))
	}
	if c.config.shows("data") {
		c.set("data "+job.ID, text(job.Data()))
	}
}

func (c *common) showState() {
	var kept []string
	for _, key := range []string{"kept", "missing", "gone"} {
		value, _ := c.state.Get(key)
		kept = append(kept, text(value))
	}
	keys := strings.Join(c.state.Keys("k"), ",")
	c.set("state", strings.Join(kept, "|")+"|"+keys)
	c.state.Delete("old")
	c.set("new", "ä🚲")
	c.err = errors.Join(c.err, c.state.SetUntil("soon", "1", c.config.at()))
	key := c.state.Set(strings.Repeat("k", 129), "v") != nil
	value := c.state.Set("k", strings.Repeat("v", 16385)) != nil
	c.set("refused", joined("|", key, value))
}

// ShowFull shows how many long values the state takes, and whether the next one is refused for its
// bound.
func (c *common) showFull() {
	value, count := strings.Repeat("v", 16000), 0
	var refused error
	for refused == nil {
		if refused = c.state.Set(fmt.Sprintf("full %d", count), value); refused == nil {
			count++
		}
	}
	first, _ := c.state.Get("full 0")
	last, _ := c.state.Get(fmt.Sprintf("full %d", count))
	for number := range count {
		c.state.Delete(fmt.Sprintf("full %d", number))
	}
	full := errors.Is(refused, state.ErrFull)
	c.set("full", joined("|", count, full, len(first), text(last)))
}

func (c *common) showWrong() {
	_, zone := clock.Local(c.config.Zone, time.UnixMilli(0))
	_, at := clock.Local("UTC", c.config.at())
	_, noTime := clock.Instant("UTC", clock.LocalTime{Year: 2026, Month: time.January, Day: 1, Hour: 24})
	c.set("wrong", joined("|", zone != nil, at != nil, noTime != nil))
}

func (c *common) showClock() {
	shown, err := clock.Local(c.config.Zone, c.config.at())
	c.err = errors.Join(c.err, err)
	at, err := clock.Instant(c.config.Zone, shown.Time)
	c.err = errors.Join(c.err, err)
	t := shown.Time
	local := fmt.Sprintf("%d-%d-%d %d:%d:%d.%d",
		t.Year, t.Month, t.Day, t.Hour, t.Minute, t.Second, t.Millisecond)
	// The contract counts from Monday, 1, to Sunday, 7.
	weekday := (int(shown.Weekday)+6)%7 + 1
	offset := int(shown.Offset / time.Second)
	c.set("clock", joined("|", instant(clock.Now()), local, weekday, offset, instant(at)))
}

func (c *common) showEnded(ended []throttler.Ended) {
	for _, one := range ended {
		c.set("ended "+one.ID, joined("|", one.ID, one.Type, one.Priority, one.Weight,
			attribute(one.Attributes, c.config.attribute()), text(one.TargetHost), one.Attempt,
			instant(one.StartedAt), instant(one.EndedAt), one.Succeeded, text(one.Reason),
			text(one.Message), status(one.Status), text(one.Details), instant(one.NotBefore)))
	}
}

func (c *common) showRunning(running throttler.Running) {
	c.set("running", joined("|", running.Count(), running.Weight()))
	for _, job := range running.Page(0, 1000) {
		c.set("running "+job.ID, joined("|", job.ID, job.Type, job.Priority, job.Weight,
			job.Critical, attribute(job.Attributes, c.config.attribute()),
			instant(job.GrantedAt)))
	}
	var page []string
	for _, job := range running.Page(1, 2) {
		page = append(page, job.ID)
	}
	c.set("page", strings.Join(page, ","))
}

func (c *common) showGroups(running throttler.Running) {
	shown := func(groups []throttler.Group) string {
		return list(groups, func(group throttler.Group) string {
			return fmt.Sprintf("%s=%d,%d", group.Value, group.Count, group.Weight)
		})
	}
	by := throttler.ByAttribute(c.config.attribute())
	c.set("by type", shown(running.Groups(throttler.ByJobType)))
	c.set("by priority", shown(running.Groups(throttler.ByPriority)))
	c.set("by attribute", shown(running.Groups(by)))
	one := running.InGroup(by, c.config.Value)
	none := running.InGroup(throttler.ByJobType, "none")
	c.set("in group",
		fmt.Sprintf("%d,%d|%d,%d", one.Count, one.Weight, none.Count, none.Weight))
}

func (c *common) showWaiting(waiting throttler.Waiting) {
	shown := func(group throttler.WaitingGroup) string {
		return joined(",", group.Count, group.Weight, instant(group.OldestDueAt), group.AtLeast)
	}
	c.set("waiting", list(waiting.Groups(c.config.attribute()),
		func(group throttler.WaitingGroup) string { return group.Value + "=" + shown(group) }))
	others := "-"
	if group := waiting.Others(); group != nil {
		others = shown(*group)
	}
	c.set("others", others)
	c.set("counted at", instant(waiting.CountedAt()))
}

func decision(config *Config, index int) throttler.Decision {
	switch config.action(index) {
	case "hold":
		return throttler.Hold(config.Reason)
	case "hold-until":
		return throttler.HoldUntil(config.at(), config.Reason)
	case "reschedule":
		return throttler.Reschedule(config.at(), config.Reason)
	case "drop":
		return throttler.Drop(config.Reason)
	default:
		return throttler.Run()
	}
}

func decide(
	config Config, round *throttler.Round, candidates []*throttler.Job,
) (throttler.Answer, error) {
	c := &common{config: &config, state: round.State}
	if config.shows("round") {
		concurrency := "-"
		if round.Concurrency != nil {
			concurrency = fmt.Sprint(*round.Concurrency)
		}
		c.set("round", joined("|", round.Queue, instant(round.Now), concurrency, round.Room,
			len(candidates)))
	}
	c.show(candidates...)
	if config.shows("ended") {
		c.showEnded(round.Ended)
	}
	if config.shows("running") {
		c.showRunning(round.Running)
	}
	if config.shows("groups") {
		c.showGroups(round.Running)
	}
	if config.shows("waiting") {
		c.showWaiting(round.Waiting)
	}
	if config.action(0) == "error" {
		return throttler.Answer{}, errors.New(config.Reason)
	}
	var decisions []throttler.Decision
	for index := range candidates {
		decisions = append(decisions, decision(&config, index))
	}
	more := config.More == nil || *config.More
	return throttler.Answer{Decisions: decisions, More: more}, c.err
}

func onFailure(
	config Config, call *retry.Call, job *retry.Job, last retry.Failure,
) (retry.Verdict, error) {
	c := &common{config: &config, state: call.State}
	if config.shows("call") {
		c.set("call", joined("|", call.Queue, instant(call.Now)))
	}
	if config.shows("last") {
		c.set("last", failureText(last))
	}
	c.show(job)
	switch config.action(0) {
	case "error":
		return retry.Verdict{}, errors.New(config.Reason)
	case "give-up":
		return retry.GiveUp(config.Reason), c.err
	case "give-up-silently":
		return retry.GiveUp(""), c.err
	}
	return retry.Retry(retry.Plan{
		At:           config.at(),
		Data:         config.Data,
		Priority:     config.Priority,
		Weight:       config.Weight,
		AttemptsLeft: config.AttemptsLeft,
		Timeout:      time.Duration(config.Timeout) * time.Millisecond,
		Target:       config.Target,
	}), c.err
}

// The server calls the exported functions, not this one.
func main() {}
