// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// guesses maps common wrong keys of a table [policy.NAME] to the right ones.
func guesses() map[string]string {
	const principals, sessions = `"principals" (whom it applies to)`, `"sessions" (boxes at a time)`
	const memory, cpus = `"total_memory" (of all boxes; of one: ceilings.memory)`, `"total_cpus" (of all boxes; of one: ceilings.cpus)`
	return map[string]string{
		"user": principals, "users": principals, "owner": principals, "uid": principals, "principal": principals,
		"max_boxes": sessions, "boxes": sessions, "max_sessions": sessions, "max": sessions,
		"memory": memory, "max_memory": memory, "cpu": cpus, "cpus": cpus, "max_cpus": cpus,
	}
}

// suggestion returns the key that was probably meant by an unknown one: from a table of common mistakes, or the nearest
// key of the same table, or else of all.
func suggestion(key toml.Key) string {
	last := key[len(key)-1]
	if len(key) == 3 && key[0] == "policy" {
		if known, ok := guesses()[last]; ok {
			return known
		}
	}
	if names := namesOf(key); len(names) > 0 {
		if best := nearest(last, names); 2*distance(last, best) <= len(last)+1 {
			return fmt.Sprintf("%q", best)
		}
	}
	return fmt.Sprintf("%q", nearest(key.String(), knownKeys()))
}

// namesOf returns the keys of the table that a key is in.
func namesOf(key toml.Key) (names []string) {
	if len(key) == 3 {
		switch key[0] {
		case "policy":
			return tagsOf(reflect.TypeFor[policy.Policy]())
		case "profiles":
			return tagsOf(reflect.TypeFor[policy.Profile]())
		case "principals":
			return tagsOf(reflect.TypeFor[access.Rule]())
		}
	}
	table := strings.Join(key[:len(key)-1], ".")
	for _, known := range knownKeys() {
		if head, name, _ := cutLast(known); head == table {
			names = append(names, name)
		}
	}
	return names
}

func cutLast(key string) (table, name string, ok bool) {
	i := strings.LastIndexByte(key, '.')
	return key[:max(i, 0)], key[i+1:], i >= 0
}

// tagsOf returns the TOML keys of a struct type.
func tagsOf(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(cmp.Or(f.Tag.Get("toml"), "-"), ",")
		if name != "-" && name != "" {
			names = append(names, name)
		}
	}
	return slices.Compact(names)
}
