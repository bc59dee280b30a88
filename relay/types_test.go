// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// Types that callers send, and types that boxd sends. Types in their fields belong to them.
func requests() []any {
	return []any{api.OneShotRequest{}, api.SessionChange{}, api.SessionStart{}, api.ProcessRequest{}, api.SignalRequest{}, api.DrainRequest{}, api.Terminal{}, api.ClientControl{}, api.GrantRequest{}, api.FileRead{}, api.FileWrite{}, api.FileEdit{}, api.FileGlob{}, api.FileList{}, api.FileGrep{}, api.ArchiveRequest{}, api.FileStat{}, api.RootDiff{}, api.RootDiscard{}, api.ImageCommit{}, api.PortTokenRequest{}, api.FileMove{}, api.FileRemove{}, api.FileChmod{}, api.FileMkdir{}, api.MountRequest{}, api.SkillRequest{}, api.SkillChange{}, api.SkillIndexRequest{}, api.SkillFileWrite{}, api.SkillEnvironmentRequest{}, api.WorkspaceRequest{}, api.DriveChange{}, api.WorkspaceChange{}, api.WorkspaceKept{}, api.SnapshotRequest{}, api.DrivePushed{}}
}

func answers() []any {
	return []any{
		api.SessionList{},
		api.ExecResult{},
		api.ProcessList{},
		api.LogLine{},
		api.FileContent{},
		api.FileWritten{},
		api.FileEdited{},
		api.FileEvent{},
		api.FileEntries{},
		api.FileMatches{},
		api.FileDone{},
		api.ArchiveDone{},
		api.MountList{},
		api.Instructions{},
		api.SkillList{},
		api.Workspace{},
		api.WorkspaceList{},
		api.SessionDefinition{},
		api.Snapshot{},
		api.SnapshotList{},
		api.DriveList{},
		api.DriveIndex{},
		api.DriveText{},
		api.SessionDrive{},
		api.Image{},
		api.RootDiscarded{},
		api.PortToken{},
		api.ImageConfig{},
		api.ImageList{},
		api.SkillIndex{},
		api.SkillEnvironment{},
		api.SkillEntries{},
		api.SkillFile{},
		api.SkillCandidates{},
		api.Problem{},
		api.GrantList{},
		api.ProfileList{},
		api.Configuration{},
		api.Status{},
		api.Doctor{},
		api.Drain{},
		api.Health{},
		api.UsageList{},
		api.UsageHistory{},
		api.Plan{},
		api.ServerControl{},
		api.Event{},
		api.ErrorList{},
		api.AuditList{},
	}
}

// structs lists the structs in these types, by name.
func structs(of []any) map[string]reflect.Type {
	found := map[string]reflect.Type{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			walk(typ.Elem())
		case reflect.Struct:
			if _, known := found[schemaOf(typ)]; known || typ == reflect.TypeFor[time.Time]() {
				return
			}
			found[schemaOf(typ)] = typ
			for f := range typ.Fields() {
				walk(f.Type)
			}
		default:
		}
	}
	for _, v := range of {
		walk(reflect.TypeOf(v))
	}
	return found
}

// schemaOf returns the name of a type's schema.
func schemaOf(typ reflect.Type) string {
	if typ == reflect.TypeFor[limits.Patch]() {
		return "LimitsPatch"
	}
	return typ.Name()
}

// schema is a part of the document.
type schema map[string]any

func (s schema) at(path ...string) schema {
	for _, name := range path {
		next, _ := s[name].(map[string]any)
		s = next
	}
	return s
}

// closed reports whether an object may have no fields other than its own and those of its parts.
func (s schema) closed() bool {
	if s["allOf"] != nil {
		return s["unevaluatedProperties"] == false
	}
	return s["additionalProperties"] == false
}

// refersTo returns the name of the schema that this one refers to.
func (s schema) refersTo() string {
	ref, _ := s["$ref"].(string)
	if all, ok := s["allOf"].([]any); ok && len(all) == 1 {
		one, _ := all[0].(map[string]any)
		ref, _ = one["$ref"].(string)
	}
	return strings.TrimPrefix(ref, "#/components/schemas/")
}

// Every wire type is described, field by field: its name, its type, whether it is optional, and how many elements it may have. A
// described schema that is no type is one of the few that fields share.
func TestSchemasAreTheTypesOfTheWire(t *testing.T) {
	t.Parallel()
	var doc schema
	if err := json.Unmarshal([]byte(openAPI()), &doc); err != nil {
		t.Fatal(err)
	}
	schemas := doc.at("components", "schemas")
	asked, told := structs(requests()), structs(answers())
	all := maps.Clone(asked)
	maps.Copy(all, told)
	for name := range schemas {
		common := []string{"Bytes", "Size", "DurationText", "Duration", "Environment", "Labels", "Metadata", "Rlimits", "Variables", "SkillMetadata", "Xattrs"}
		if _, ok := all[name]; !ok && !slices.Contains(common, name) {
			t.Errorf("%s is described and is no type of relay/api", name)
		}
	}
	for name, typ := range all {
		s := schemas.at(name)
		if s == nil {
			t.Errorf("%s is not described", name)
			continue
		}
		_, isAsked := asked[name]
		_, isTold := told[name]
		// A request with an unknown field is refused; an answer may get more fields in the next release.
		isPart := typ == reflect.TypeFor[limits.Patch]() // a part of closed objects
		if closed := s.closed(); closed != (isAsked && !isTold && !isPart) {
			t.Errorf("%s: additionalProperties is false: %v; used in requests %v, in answers %v", name, closed, isAsked, isTold)
		}
		w := typeCheck{asked: isAsked, told: isTold, schemas: schemas}
		for _, problem := range w.compare(typ, s) {
			t.Errorf("%s.%s", name, problem)
		}
	}
}

// typeCheck compares a type with its schema.
type typeCheck struct {
	asked, told bool
	schemas     schema
}

func (w typeCheck) compare(typ reflect.Type, s schema) (wrong []string) {
	properties := s.at("properties")
	left := maps.Clone(properties)
	var required, parts []any
	for f := range typ.Fields() {
		if f.Anonymous {
			parts = append(parts, map[string]any{"$ref": "#/components/schemas/" + schemaOf(f.Type)})
			if typ == reflect.TypeFor[api.Profile]() && f.Type == reflect.TypeFor[limits.Limits]() {
				required = append(required, "rlimits") // optional in sessions; every profile has a table of them, see policy.DefaultProfile
			}
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			required = append(required, name)
		}
		delete(left, name)
		p := properties.at(name)
		if p == nil {
			wrong = append(wrong, name+" is not described")
			continue
		}
		if why := w.differs(f.Type, p, f.Tag.Get("max")); why != "" {
			wrong = append(wrong, name+": "+why)
		}
	}
	if all, _ := s["allOf"].([]any); !reflect.DeepEqual(all, parts) {
		wrong = append(wrong, fmt.Sprintf("allOf is %v, want %v", all, parts))
	}
	for name := range left {
		wrong = append(wrong, name+" is described and is no field")
	}
	if list, _ := s["required"].([]any); fmt.Sprint(list) != fmt.Sprint(required) {
		wrong = append(wrong, fmt.Sprintf("required is %v, want %v", list, required))
	}
	return wrong
}

// differs says how a field and its schema differ.
func (w typeCheck) differs(typ reflect.Type, s schema, most string) string {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	var want string
	switch {
	case typ == reflect.TypeFor[quantity.Size]():
		want = map[bool]string{true: "Size", false: "Bytes"}[w.asked]
	case typ == reflect.TypeFor[quantity.Duration]():
		want = map[bool]string{true: "Duration", false: "DurationText"}[w.asked]
	case typ == reflect.TypeFor[json.RawMessage](): // the body of another request
		return unlike(s, "type", "object")
	case typ == reflect.TypeFor[time.Time]():
		return unlike(s, "type", "string", "format", "date-time")
	case typ.Kind() == reflect.Struct:
		want = typ.Name()
		// Answers may get more fields one day; in requests these must not be sent.
		shared := !w.schemas.at(want).closed()
		if closed := s["unevaluatedProperties"] == false; closed != (w.asked && !w.told && shared) {
			return fmt.Sprintf("no other fields is %v", closed)
		}
	case typ.Kind() == reflect.Map:
		if w.asked { // Environment or Labels
			s = w.schemas.at(s.refersTo())
		}
		if why := unlike(s, "type", "object", "maxProperties", most); why != "" {
			return why
		}
		return w.differs(typ.Elem(), s.at("additionalProperties"), "")
	case typ.Kind() == reflect.Slice:
		if why := unlike(s, "type", "array", "maxItems", most); why != "" {
			return why
		}
		return w.differs(typ.Elem(), s.at("items"), "")
	case typ.Kind() == reflect.Array:
		n := strconv.Itoa(typ.Len())
		if why := unlike(s, "type", "array", "minItems", n, "maxItems", n); why != "" {
			return why
		}
		return w.differs(typ.Elem(), s.at("items"), "")
	default:
		return unlike(s, "type", jsonType(typ.Kind()))
	}
	if got := s.refersTo(); got != want {
		return fmt.Sprintf("is %q, want %s", got, want)
	}
	return ""
}

func jsonType(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Float64:
		return "number"
	case reflect.Int, reflect.Int64, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "integer"
	default:
		return "nothing that goes over the wire"
	}
}

// unlike compares some keywords of a schema; "" is one that must be missing.
func unlike(s schema, keywords ...string) string {
	for i := 0; i < len(keywords); i += 2 {
		got := ""
		if v, ok := s[keywords[i]]; ok {
			got = fmt.Sprint(v)
		}
		if got != keywords[i+1] {
			return fmt.Sprintf("%s is %q, want %q", keywords[i], got, keywords[i+1])
		}
	}
	return ""
}
