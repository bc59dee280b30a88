// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/limits"
	"github.com/boxd-dev/boxd/relay/api"
)

// Every limit is asked for when a session is made and while it lives, and told wherever a session or a profile is, in the types of the wire
// and in the description of them.
func TestEveryLimitIsOnTheWireAndDescribed(t *testing.T) {
	t.Parallel()
	var doc schema
	if err := json.Unmarshal([]byte(openAPI()), &doc); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		of   any
		have []any
	}{
		{api.SessionRequest{}, []any{limits.Patch{}}},
		{api.SessionChange{}, []any{limits.Patch{}}},
		{api.Session{}, []any{limits.Limits{}, limits.Lifetime{}}},
		{api.PlannedSession{}, []any{limits.Limits{}, limits.Lifetime{}}},
		{api.Profile{}, []any{limits.Limits{}, limits.Lifetime{}}},
	} {
		typ := reflect.TypeOf(tc.of)
		described := doc.at("components", "schemas", typ.Name(), "properties")
		for _, part := range tc.have {
			embedded := reflect.TypeOf(part)
			if f, ok := typ.FieldByName(embedded.Name()); !ok || !f.Anonymous || f.Type != embedded {
				t.Errorf("%v has not the fields of %v", typ, embedded)
			}
			for f := range embedded.Fields() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if _, ok := described[name]; !ok {
					t.Errorf("%s.%s is not described", typ.Name(), name)
				}
			}
		}
	}
}
