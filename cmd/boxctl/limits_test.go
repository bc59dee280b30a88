// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/limits"
)

// Every limit in a request has a flag of its name, which sets that limit and nothing else.
func TestEveryLimitHasItsFlag(t *testing.T) {
	t.Parallel()
	value := map[reflect.Kind]string{reflect.Float64: "1.5", reflect.Int: "7", reflect.Uint64: "1GiB", reflect.Int64: "5m", reflect.String: "session"}
	for field := range reflect.TypeFor[limits.Patch]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		flag := "--" + strings.ReplaceAll(name, "_", "-") + "=" + value[field.Type.Elem().Kind()]
		var f sessionFlags
		cmd := &cobra.Command{}
		f.add(cmd)
		if err := cmd.ParseFlags([]string{flag}); err != nil {
			t.Errorf("%s: %v", flag, err)
			continue
		}
		req, err := f.request("id")
		if err != nil {
			t.Errorf("%s: %v", flag, err)
			continue
		}
		for other, v := range reflect.ValueOf(req.Patch).Fields() {
			if requested := !v.IsNil(); requested != (other.Name == field.Name) {
				t.Errorf("%s asks for %s: requested = %v, want (other.Name == field.Name)", flag, other.Name, requested)
			}
		}
	}
}
