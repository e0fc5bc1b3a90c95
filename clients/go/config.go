package tidegate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
)

// Settings are the settings of a resource, by their names in the API.
type Settings map[string]any

// A Config declares queues, types, schedules and triggers, in any order.
//
// A declaration is the whole configuration of its resource: a setting that it leaves out has its
// default. Resources that are not declared are left alone; nothing is ever deleted. The zero value
// is ready to use.
type Config struct {
	declared []declaration
}

type declaration struct {
	kind, name string
	settings   Settings
}

// The kinds and their routes, in the order in which they are applied: types name queues, schedules
// name types.
var kinds = []struct{ kind, route string }{
	{"queue", "queues"}, {"job type", "job-types"}, {"schedule", "schedules"}, {"trigger", "triggers"},
}

// Settings of job types that the server accepts and never shows.
var writeOnly = map[string]bool{
	"signing_secret": true, "callback_signing_secret": true, "password": true,
}

// Words in the names of a target's headers that the server does not show either.
var secretWords = []string{"authorization", "cookie", "secret", "token", "password", "key"}

// What is shown of a secret.
const secret = "***"

// Inside of a setting, what the server adds to an object that leaves it out.
var innerDefaults = map[string][]any{
	"base_seconds": {2.0}, "complete": {"on_delivery", "on_result"}, "encoding": {"json"},
	"invocation": {"wait"}, "jitter": {"full"}, "max_seconds": {3600.0}, "strategy": {"exponential"},
	"tz": {"UTC"},
}

// Queue declares a queue. Settings are Settings, an api.QueueConfig, or nil.
func (c *Config) Queue(name string, settings any) error { return c.declare("queue", name, settings) }

// JobType declares a job type. Settings are Settings, an api.TypeConfig, or nil.
func (c *Config) JobType(name string, settings any) error {
	return c.declare("job type", name, settings)
}

// Schedule declares a schedule. Settings are Settings, or an api.NewSchedule.
func (c *Config) Schedule(name string, settings any) error {
	return c.declare("schedule", name, settings)
}

// Trigger declares a trigger. Settings are Settings, or an api.TriggerConfig.
func (c *Config) Trigger(name string, settings any) error {
	return c.declare("trigger", name, settings)
}

func (c *Config) declare(kind, name string, settings any) error {
	content, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	plain := Settings{}
	if err := json.Unmarshal(content, &plain); err != nil {
		return fmt.Errorf("the settings of the %s %s are not an object: %w", kind, name, err)
	}
	if plain == nil {
		plain = Settings{}
	}
	for _, other := range c.declared {
		if other.kind == kind && other.name == name {
			if reflect.DeepEqual(other.settings, plain) {
				return nil
			}
			return fmt.Errorf("the %s %s is declared twice, with different settings", kind, name)
		}
	}
	c.declared = append(c.declared, declaration{kind, name, plain})
	return nil
}

// Has reports whether a resource is declared; kind is queue, job type, schedule or trigger.
func (c *Config) Has(kind, name string) bool {
	return slices.ContainsFunc(c.declared, func(d declaration) bool {
		return d.kind == kind && d.name == name
	})
}

// A Difference is a setting that differs.
type Difference struct {
	Field string
	// Current is what the server has.
	Current any
	Wanted  any
}

// A Step is what a plan does with one resource.
type Step struct {
	// Action is create, change or keep.
	Action      string
	Kind, Name  string
	Differences []Difference
	settings    Settings
	etag        string
}

// A Plan has the steps that lead from the server's configuration to the declared one.
type Plan struct {
	Steps  []Step
	client *Client
}

// HasChanges reports whether anything is to change.
func (p *Plan) HasChanges() bool {
	return slices.ContainsFunc(p.Steps, func(step Step) bool { return step.Action != "keep" })
}

// String returns the changes, as text for people.
func (p *Plan) String() string {
	var lines []string
	for _, step := range p.Steps {
		sign := map[string]string{"create": "+", "change": "~"}[step.Action]
		if sign == "" {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s %s", sign, step.Kind, step.Name))
		for _, d := range step.Differences {
			old := ""
			if step.Action == "change" {
				old = shown(d.Field, d.Current) + " -> "
			}
			lines = append(lines, fmt.Sprintf("    %s: %s%s", d.Field, old, shown(d.Field, d.Wanted)))
		}
	}
	if lines == nil {
		return "nothing to change"
	}
	return strings.Join(lines, "\n")
}

// Apply does the steps. The error is ErrPreconditionFailed if a resource has changed since the plan
// was made. The steps before it are done then; a new plan has the rest.
func (p *Plan) Apply(ctx context.Context) error {
	for _, step := range p.Steps {
		if step.Action == "keep" {
			continue
		}
		request := Request{Method: "PUT", Path: path(routeOf(step.Kind), step.Name), Body: step.settings}
		if step.etag != "" {
			// A repeat with If-Match could be refused after its first delivery succeeded.
			request.Header, request.Once = http.Header{"If-Match": {step.etag}}, true
		}
		if _, err := p.client.Do(ctx, request); err != nil {
			return fmt.Errorf("%s %s: %w", step.Kind, step.Name, err)
		}
	}
	return nil
}

// Plan compares a configuration with the server, and changes nothing.
//
// Secrets cannot be read. With secrets, the server compares those of a job type that declares or has
// one, which needs the scope admin. Without, they are not compared, and read is enough.
func (c *Client) Plan(ctx context.Context, config *Config, secrets bool) (*Plan, error) {
	var defaults map[string]Settings
	if err := json.Unmarshal([]byte(defaultsJSON), &defaults); err != nil {
		return nil, err
	}
	plan := &Plan{client: c}
	declared := slices.Clone(config.declared)
	slices.SortFunc(declared, func(a, b declaration) int {
		return cmp.Or(cmp.Compare(rankOf(a.kind), rankOf(b.kind)), strings.Compare(a.name, b.name))
	})
	for _, d := range declared {
		answer, err := c.Do(ctx, Request{Method: "GET", Path: path(routeOf(d.kind), d.name)})
		if errors.Is(err, ErrNotFound) {
			step := Step{Action: "create", Kind: d.kind, Name: d.name, settings: d.settings}
			for _, field := range sortedKeys(d.settings) {
				step.Differences = append(step.Differences, Difference{Field: field, Wanted: d.settings[field]})
			}
			plan.Steps = append(plan.Steps, step)
			continue
		}
		current, err := decode[Settings](answer, err)
		if err != nil {
			return nil, err
		}
		step := Step{Action: "keep", Kind: d.kind, Name: d.name, settings: d.settings}
		step.etag = answer.Header.Get("Etag")
		compared, hasSecrets := d.settings, len(secretsOf(current)) > 0
		if d.kind == "job type" {
			var found bool
			compared, found = withoutSecrets(d.settings)
			hasSecrets = hasSecrets || found
		}
		step.Differences = differencesOf(defaults[d.kind], compared, current)
		if secrets && hasSecrets {
			changed, err := c.changedSecrets(ctx, d, current)
			if err != nil {
				return nil, err
			}
			step.Differences = append(step.Differences, changed...)
		}
		if len(step.Differences) > 0 {
			step.Action = "change"
		}
		plan.Steps = append(plan.Steps, step)
	}
	return plan, nil
}

// changedSecrets returns the secrets that a declaration would change: only the server can compare
// them.
func (c *Client) changedSecrets(ctx context.Context, d declaration, current Settings) ([]Difference, error) {
	preview, err := decode[Settings](c.Do(ctx, Request{
		Method: "PUT", Path: path(routeOf(d.kind), d.name), Body: d.settings,
		Query: url.Values{"dry_run": {"true"}},
	}))
	if err != nil {
		return nil, err
	}
	shownIn := func(view Settings, field string) any {
		if slices.Contains(secretsOf(view), field) {
			return secret
		}
		return nil
	}
	var found []Difference
	for _, field := range texts(preview["changed_secrets"]) {
		found = append(found, Difference{
			Field: field, Current: shownIn(current, field), Wanted: shownIn(preview, field),
		})
	}
	return found, nil
}

// secretsOf returns the paths of the secrets that a job type has.
func secretsOf(view Settings) []string { return texts(view["secrets"]) }

func texts(value any) []string {
	items, _ := value.([]any)
	found := make([]string, 0, len(items))
	for _, item := range items {
		if text, ok := item.(string); ok {
			found = append(found, text)
		}
	}
	return found
}

// withoutSecrets returns the settings of a job type as the server shows them, and whether it left out
// a secret.
func withoutSecrets(settings Settings) (Settings, bool) {
	found := false
	without := func(value any, isSecret func(string) bool) any {
		fields, ok := value.(map[string]any)
		if !ok {
			return value
		}
		visible := map[string]any{}
		for name, item := range fields {
			if isSecret(name) {
				found = true
			} else {
				visible[name] = item
			}
		}
		return visible
	}
	isWriteOnly := func(name string) bool { return writeOnly[name] }
	visible := without(map[string]any(settings), isWriteOnly).(map[string]any)
	if target, ok := without(visible["target"], isWriteOnly).(map[string]any); ok {
		if basic, has := target["basic_auth"]; has {
			target["basic_auth"] = without(basic, isWriteOnly)
		}
		if headers, has := target["headers"]; has {
			target["headers"] = without(headers, isSecretHeader)
		}
		visible["target"] = target
	}
	return visible, found
}

func isSecretHeader(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(name, word) })
}

// Apply creates or changes what a configuration declares, and returns what was done.
func (c *Client) Apply(ctx context.Context, config *Config, secrets bool) (*Plan, error) {
	plan, err := c.Plan(ctx, config, secrets)
	if err != nil {
		return nil, err
	}
	return plan, plan.Apply(ctx)
}

func rankOf(kind string) int {
	return slices.IndexFunc(kinds, func(k struct{ kind, route string }) bool { return k.kind == kind })
}

func routeOf(kind string) string { return kinds[rankOf(kind)].route }

func sortedKeys(settings Settings) []string {
	keys := make([]string, 0, len(settings))
	for key := range settings {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func differencesOf(defaults, settings, current Settings) []Difference {
	all := Settings{}
	for field := range defaults {
		all[field] = nil
	}
	for field := range settings {
		all[field] = nil
	}
	var found []Difference
	for _, field := range sortedKeys(all) {
		wanted, actual := settings[field], current[field]
		if field == "paused" && wanted == nil {
			continue // A PUT without it leaves a schedule paused or not.
		}
		if wanted == nil {
			wanted = defaults[field]
		}
		if !covers(actual, wanted) {
			found = append(found, Difference{Field: field, Current: actual, Wanted: wanted})
		}
	}
	return found
}

// covers reports whether actual is wanted with nothing but defaults in addition.
func covers(actual, wanted any) bool {
	if want, ok := wanted.(map[string]any); ok {
		if have, ok := actual.(map[string]any); ok {
			for name, value := range want {
				if !covers(have[name], value) {
					return false
				}
			}
			for name, value := range have {
				if _, isWanted := want[name]; !isWanted && !isDefault(name, value) {
					return false
				}
			}
			return true
		}
	}
	if isEmpty(wanted) {
		return isEmpty(actual)
	}
	if want, ok := wanted.([]any); ok {
		have, ok := actual.([]any)
		if !ok || len(have) != len(want) {
			return false
		}
		for i := range want {
			if !covers(have[i], want[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(actual, wanted)
}

func isDefault(name string, value any) bool {
	if object, ok := value.(map[string]any); ok {
		for inner, item := range object {
			if !isDefault(inner, item) {
				return false
			}
		}
		return true
	}
	return isEmpty(value) || slices.ContainsFunc(innerDefaults[name], func(known any) bool {
		return reflect.DeepEqual(known, value)
	})
}

func isEmpty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case bool:
		return !value
	case string:
		return value == ""
	case []any:
		return len(value) == 0
	case map[string]any:
		return len(value) == 0
	}
	return false
}

func shown(field string, value any) string {
	if value == any(secret) || writeOnly[field] && value != nil {
		return secret
	}
	text, err := json.Marshal(hidden(value))
	if err != nil {
		return "?"
	}
	return string(text)
}

func hidden(value any) any {
	switch value := value.(type) {
	case map[string]any:
		found := map[string]any{}
		for name, item := range value {
			if writeOnly[name] || name == "headers" {
				found[name] = secret
			} else {
				found[name] = hidden(item)
			}
		}
		return found
	case []any:
		found := make([]any, len(value))
		for i, item := range value {
			found[i] = hidden(item)
		}
		return found
	}
	return value
}
