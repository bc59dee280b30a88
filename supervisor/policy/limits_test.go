// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// tagged returns the fields of structs by the names in a tag.
func tagged(tag string, structs ...any) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for _, s := range structs {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(s)) {
			if name, _, _ := strings.Cut(f.Tag.Get(tag), ","); name != "" {
				fields[name] = f
			}
		}
	}
	return fields
}

func tableNames() (names []string) {
	for _, l := range limitTable() {
		names = append(names, l.name())
	}
	slices.Sort(names)
	return names
}

// A limit must be in the table and in every struct that has limits; this test lists the places that lack one.
func TestEveryLimitIsInTheTableAndWhereverLimitsAre(t *testing.T) {
	t.Parallel()
	values := tagged("json", limits.Limits{}, limits.Lifetime{})
	delete(values, "rlimits") // one field for several limits, each of which is merged by itself
	all := maps.Clone(values)
	maps.Copy(all, tagged("json", limits.Patch{}))
	if diff := cmp.Diff(slices.Sorted(maps.Keys(all)), tableNames()); diff != "" {
		t.Errorf("-fields of limits +limitTable:\n%s", diff)
	}
	for name, f := range values {
		if f.Tag.Get("toml") != name {
			t.Errorf("%s is %q in box.toml", name, f.Tag.Get("toml"))
		}
	}
	// memory_high only slows programs down below their limit, and oom is not an amount.
	without := []string{"memory_high", "oom"}
	profile, settings, ceilings := tagged("toml", Profile{}), tagged("json", Settings{}), tagged("toml", limits.Ceilings{})
	for _, l := range limitTable() {
		name := l.name()
		if _, ok := profile[name]; !ok {
			t.Errorf("a profile has no %s", name)
		}
		if _, ok := settings[name]; !ok {
			t.Errorf("the record of a session has no %s", name)
		}
		if _, ok := ceilings[name]; ok == slices.Contains(without, name) {
			t.Errorf("ceilings have %s: ok = %v, want ok != slices.Contains(without, name)", name, ok)
		}
	}
	for name := range ceilings {
		if name != "timeout" && !slices.Contains(tableNames(), name) { // a limit of executions
			t.Errorf("the ceiling %s is of no limit", name)
		}
	}
}

// Each row accesses the fields of its name, and no others.
func TestEachLimitTableRowAccessesItsOwnFields(t *testing.T) {
	t.Parallel()
	for _, l := range limitTable() {
		t.Run(l.name(), func(t *testing.T) {
			t.Parallel()
			var have, other Settings
			value := reflect.ValueOf(&have).Elem().FieldByIndex(tagged("json", have)[l.name()].Index)
			set(value)
			if l.same(&have, &other) {
				t.Error("same is true for settings that differ in this limit")
			}
			if value.SetZero(); !l.same(&have, &other) {
				t.Error("same depends on another field of the settings")
			}
			set(value)
			var req Request
			l.setRequested(&req, &have)
			if !l.given(&req) || reflect.DeepEqual(req, Request{}) {
				t.Error("given is false for a request with this limit")
			}
			if l.pick(&merger{}, &other, &req); !l.same(&have, &other) {
				t.Error("pick does not take the limit from the request")
			}
			locked := &merger{profile: "p", locked: []string{l.name()}}
			if l.pick(locked, new(Settings), &req); locked.err == nil {
				t.Error("no error for a locked limit")
			}
			ceiling, ok := tagged("toml", limits.Ceilings{})[l.name()]
			if !ok {
				return
			}
			h := &EffectivePolicy{Name: "ci"}
			set(reflect.ValueOf(&h.Ceilings).Elem().FieldByIndex(ceiling.Index))
			more := Settings{Network: NetworkEgress, ReadOnlyRoot: false}
			if l.raise(&more, &h.Ceilings); !l.same(&more, &have) {
				t.Error("raise does not use the ceiling of the same name")
			}
			double(reflect.ValueOf(&more).Elem().FieldByIndex(tagged("json", more)[l.name()].Index))
			cutter := &cutter{policy: h}
			if l.cut(cutter, &more, &Request{}); !l.same(&more, &have) || len(cutter.clamped) != 1 || cutter.clamped[0].Field != l.name() {
				t.Errorf("it is not cut to its ceiling: cutter.clamped = %+v, want l.same(&more, &have) and len(cutter.clamped) == 1 and cutter.clamped[0].Field == l.name()",
					cutter.clamped)
			}
		})
	}
}

// set sets a limit to some value.
func set(v reflect.Value) {
	switch v.Kind() {
	case reflect.Float64:
		v.SetFloat(4)
	case reflect.Uint64:
		v.SetUint(uint64(quantity.GiB))
	case reflect.Int, reflect.Int64:
		v.SetInt(4000)
	case reflect.String:
		v.SetString(OOMSession)
	default:
		panic(v.Kind())
	}
}

// double doubles it.
func double(v reflect.Value) {
	switch v.Kind() {
	case reflect.Float64:
		v.SetFloat(2 * v.Float())
	case reflect.Uint64:
		v.SetUint(2 * v.Uint())
	default:
		v.SetInt(2 * v.Int())
	}
}

// Every limit is enforced by something: a cgroup, or what its row names.
func TestEveryLimitIsEnforced(t *testing.T) {
	t.Parallel()
	var all Settings
	var groups cgroup.Limits
	for _, l := range limitTable() {
		set(reflect.ValueOf(&all).Elem().FieldByIndex(tagged("json", all)[l.name()].Index))
		before := groups
		l.toGroup(&all, &groups)
		if (before == groups) != (l.elsewhere() != "") {
			t.Errorf("%s is passed to the cgroups: %v; the table says that %q enforces it", l.name(), before != groups, l.elsewhere())
		}
	}
	for field, v := range reflect.ValueOf(groups).Fields() {
		if v.IsZero() {
			t.Errorf("no limit sets %s of the cgroups", field.Name)
		}
	}
}

// box.toml sets every limit in every profile, and in the ceilings.
func TestEveryLimitIsInBoxToml(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../box.toml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Profiles map[string]map[string]any
		Policy   map[string]struct{ Ceilings map[string]any }
	}
	if _, err := toml.Decode(string(text), &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Profiles) < 5 || len(file.Policy) != 1 {
		t.Fatalf("%d profiles, %d policies", len(file.Profiles), len(file.Policy))
	}
	for _, l := range limitTable() {
		for profile, keys := range file.Profiles {
			if _, ok := keys[l.name()]; !ok {
				t.Errorf("profiles.%s has no %s", profile, l.name())
			}
		}
	}
	for name := range tagged("toml", limits.Ceilings{}) {
		if _, ok := file.Policy[defaultPolicyName].Ceilings[name]; !ok {
			t.Errorf("policy.default.ceilings has no %s", name)
		}
	}
}
