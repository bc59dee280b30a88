// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/relay/api"
)

// Every limit can be set when a session is created and while it lives, and is reported wherever a session or a profile is. That
// these types are described, with what they embed, is tested by TestSchemasAreTheTypesOfTheWire.
func TestEveryLimitIsOnTheWire(t *testing.T) {
	t.Parallel()
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
		for _, part := range tc.have {
			embedded := reflect.TypeOf(part)
			if f, ok := typ.FieldByName(embedded.Name()); !ok || !f.Anonymous || f.Type != embedded {
				t.Errorf("%v has not the fields of %v", typ, embedded)
			}
		}
	}
}

// The schema of a request with parts knows the parts' fields, and no others.
func TestARequestForLimitsHasNoOtherFields(t *testing.T) {
	t.Parallel()
	schemas := described(t).Components.Schemas
	for _, name := range []string{"SessionRequest", "SessionChange"} {
		for body, want := range map[string]bool{`{"memory": "1GiB", "labels": {"a": "b"}}`: true, `{"memory": true}`: false, `{"colour": "red"}`: false} {
			var v any
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Fatal(err)
			}
			if err := schemas[name].Value.VisitJSON(v, openapi3.EnableJSONSchema2020()); (err == nil) != want {
				t.Errorf("%s %s: err = %v, want (err == nil) == %v", name, body, err, want)
			}
		}
	}
}
