// SPDX-License-Identifier: Apache-2.0

package boxd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/boxd-dev/boxd"

// mayImport is the map of the rooms: what each may import of the others. A room that is not here does
// not exist. Imports point down: nothing appears on the right before it has stood on the left.
func mayImport() map[string]string {
	return map[string]string{
		"": "", // the sentence of doc.go
		// things, not rooms: each is one idea that several rooms need
		"internal/fault":    "",
		"internal/fdpass":   "",
		"internal/mountfd":  "",
		"internal/durable":  "",
		"internal/quantity": "",
		"internal/tty":      "",
		"internal/tarball":  "",
		"internal/trace":    "",
		"internal/chain":    "",
		"internal/closed":   "",
		"internal/pip":      "",
		"internal/slack":    "",
		// what a box is limited by: texts and one group; the tree of all; what is used
		"cgroup":                  "",
		"cgroup/tree":             "cgroup",
		"cgroup/usage":            "",
		"isolation/network/apart": "",
		"isolation/network/reach": "isolation/network/apart",
		// what a box is, and its two halves
		"isolation/trees":             "",
		"isolation":                   "isolation/names isolation/trees cgroup",
		"isolation/seccomp":           "",
		"isolation/seccomp/gen":       "",
		"isolation/lookup":            "",
		"isolation/limited":           "isolation isolation/lookup",
		"isolation/hunt":              "",
		"isolation/names":             "",
		"isolation/overlay":           "isolation isolation/names isolation/trees internal/mountfd",
		"isolation/life":              "isolation",
		"isolation/output":            "",
		"isolation/rootfs":            "isolation/trees isolation isolation/names internal/mountfd",
		"isolation/disk":              "internal/mountfd",
		"isolation/differ":            "isolation",
		"isolation/bounds":            "isolation isolation/disk internal/mountfd",
		"isolation/skillpath":         "isolation",
		"isolation/removal":           "",
		"isolation/workspaces":        "isolation/overlay isolation/removal isolation/trees isolation/skillpath isolation isolation/disk internal/mountfd",
		"isolation/ids":               "isolation",
		"isolation/sources":           "isolation isolation/skillpath internal/mountfd",
		"isolation/examine":           "isolation",
		"isolation/records":           "isolation/trees isolation cgroup internal/fdpass",
		"isolation/dress":             "isolation/names",
		"isolation/reap":              "",
		"isolation/network/rule":      "",
		"isolation/network/pair":      "isolation/network/apart",
		"isolation/network/sockets":   "isolation/network/apart isolation/network/rule",
		"isolation/shared":            "isolation",
		"isolation/network/strangers": "",
		"isolation/network":           "isolation isolation/network/pair isolation/network/reach isolation/network/rule isolation/network/sockets isolation/network/strangers",
		"isolation/live":              "isolation/trees isolation isolation/sources internal/mountfd",
		"isolation/inherited":         "",
		"isolation/zygote":            "isolation isolation/inherited isolation/ids isolation/rootfs internal/fdpass",
		"isolation/keeper":            "isolation/rootfs isolation/bounds isolation/shared isolation/overlay isolation/trees isolation/zygote isolation isolation/names isolation/network isolation/network/rule isolation/reap isolation/dress isolation/live isolation/ids isolation/lending isolation/sources isolation/examine isolation/records isolation/seccomp isolation/disk isolation/workspaces cgroup cgroup/tree internal/fdpass internal/mountfd",
		"isolation/errands":           "internal/fdpass",
		"isolation/lending":           "isolation isolation/errands isolation/live isolation/sources internal/fdpass",
		// the program that serves files inside a box, and what it is asked
		"isolation/files":        "",
		"isolation/files/layers": "isolation/files",
		"isolation/files/verbs":  "isolation/files internal/tarball",
		"isolation/files/search": "isolation/files isolation/files/verbs",
		"isolation/files/merged": "isolation/files isolation/files/verbs",
		"isolation/files/serve":  "isolation/files isolation/files/verbs isolation/files/search isolation/files/merged",
		// which names a box may ask for, and the resolver that it asks
		"isolation/network/names":   "internal/fault",
		"isolation/network/resolve": "isolation/network/names",
		"isolation/network/talk":    "isolation/network/names",
		"isolation/network/swap":    "isolation/network/names isolation/network/talk",
		"isolation/network/proxy":   "isolation/network/names isolation/network/resolve isolation/network/swap",
		"isolation/network/counter": "isolation/network/swap isolation/network/names isolation/network/proxy isolation/network/resolve isolation/network/talk internal/fdpass",
		"isolation/inside":          "isolation/inherited isolation/shared isolation/overlay isolation isolation/hunt isolation/names isolation/life isolation/lookup isolation/output cgroup internal/fdpass internal/mountfd",
		"isolation/client":          "isolation/differ isolation isolation/names isolation/output cgroup internal/fdpass",
		// the service manager
		"systemd":         "",
		"systemd/journal": "internal/trace",
		// who is calling
		"access":          "",
		"access/rules":    "access",
		"access/tokens":   "access internal/closed",
		"access/grants":   "access internal/durable internal/fault",
		"access/previews": "internal/durable",
		"access/gate":     "access access/rules access/tokens access/grants internal/fault",
		// what exists and who may
		"supervisor/machine":           "internal/quantity",
		"supervisor/events":            "internal/fault internal/trace",
		"supervisor/recent":            "internal/trace",
		"supervisor/leaks":             "",
		"supervisor/audit":             "internal/chain internal/durable internal/fault internal/quantity",
		"supervisor/admission":         "internal/fault",
		"supervisor/ended":             "",
		"supervisor/turns":             "",
		"supervisor/overdue":           "",
		"supervisor/naming":            "internal/fault",
		"supervisor/policy/language":   "",
		"supervisor/policy/queue":      "internal/quantity",
		"supervisor/policy/roots":      "isolation internal/fault",
		"supervisor/policy/variables":  "internal/fault internal/quantity",
		"supervisor/policy/drive":      "isolation/trees internal/fault",
		"supervisor/policy/skillnames": "supervisor/policy/variables internal/fault",
		"supervisor/policy/filelimits": "internal/quantity",
		"supervisor/policy/secret":     "isolation/network/names internal/fault",
		"supervisor/policy/egress":     "isolation/network/names isolation/network/rule internal/fault internal/quantity",
		"supervisor/images/root":       "",
		"supervisor/policy":            "supervisor/policy/skillnames supervisor/policy/language supervisor/policy/queue supervisor/policy/roots supervisor/policy/secret supervisor/images/root supervisor/policy/filelimits supervisor/policy/egress access supervisor/machine supervisor/naming cgroup cgroup/usage isolation internal/fault internal/quantity supervisor/policy/variables supervisor/policy/drive isolation/network/rule",
		"supervisor/quota":             "supervisor/policy internal/fault internal/quantity",
		"supervisor/ledger":            "internal/durable internal/quantity",
		"supervisor/process":           "isolation/limited supervisor/policy/variables supervisor/overdue supervisor/policy isolation isolation/client isolation/output internal/fault internal/fdpass internal/quantity",
		"supervisor/totals":            "access cgroup supervisor/policy",
		"supervisor/ghosts":            "isolation",
		"supervisor/pool":              "isolation isolation/client",
		"supervisor/room":              "supervisor/admission supervisor/machine supervisor/policy internal/fault internal/quantity",
		"supervisor/spaces":            "supervisor/driver supervisor/ledger supervisor/policy isolation internal/durable internal/fault internal/quantity",
		"supervisor/driver":            "supervisor/traffic isolation/network/names isolation/network/rule isolation/network/talk internal/fdpass supervisor/resolving systemd isolation isolation/client cgroup internal/fault",
		"supervisor/command":           "isolation/limited supervisor/policy/language supervisor/policy/variables supervisor/images/root supervisor/process supervisor/policy isolation isolation/client internal/fault internal/quantity isolation/trees",
		"supervisor/doctor":            "supervisor/driver supervisor/policy cgroup/usage isolation internal/fault internal/quantity",
		"supervisor/failure":           "supervisor/policy/roots supervisor/policy cgroup isolation isolation/client internal/fault",
		"supervisor/result":            "supervisor/policy cgroup cgroup/usage isolation internal/quantity",
		"supervisor/records":           "supervisor/ghosts supervisor/policy/drive access supervisor/policy isolation isolation/output internal/durable internal/fdpass",
		"supervisor/gate":              "internal/durable internal/fault",
		"supervisor/session":           "supervisor/naming supervisor/totals supervisor/overdue supervisor/turns supervisor/quota supervisor/events access supervisor/admission supervisor/ended supervisor/command supervisor/failure supervisor/process supervisor/policy supervisor/result cgroup cgroup/usage isolation isolation/client internal/fault supervisor/policy/drive",
		"supervisor/resolving":         "isolation/network/names isolation/network/talk internal/fault internal/fdpass",
		"supervisor/mounts":            "supervisor/ghosts access supervisor/events supervisor/failure supervisor/policy supervisor/session isolation isolation/client internal/fault",
		"supervisor/recording":         "supervisor/mounts supervisor/records supervisor/session isolation",
		"supervisor/traffic":           "isolation isolation/network/names isolation/network/rule",
		"supervisor/alter":             "supervisor/driver supervisor/policy supervisor/session isolation internal/fault",
		"supervisor/images/archive":    "internal/fault internal/tarball",
		"supervisor/images":            "supervisor/policy/variables supervisor/images/root isolation/skillpath supervisor/driver supervisor/images/archive supervisor/policy supervisor/session cgroup/usage isolation isolation/client isolation/files internal/durable internal/fault internal/quantity isolation/trees",
		"supervisor/secrets":           "supervisor/driver supervisor/policy/secret supervisor/process supervisor/session isolation isolation/client isolation/files isolation/network/names isolation/network/talk internal/closed internal/durable internal/fault",
		"supervisor/activation":        "supervisor/secrets supervisor/images supervisor/images/root supervisor/driver supervisor/events supervisor/mounts supervisor/policy supervisor/session supervisor/skills isolation isolation/client isolation/skillpath internal/fault isolation/trees supervisor/policy/drive supervisor/drives",
		"supervisor/ports":             "supervisor/driver supervisor/failure supervisor/policy supervisor/session isolation isolation/client internal/fault internal/fdpass",
		"supervisor":                   "supervisor/ghosts supervisor/recording supervisor/totals supervisor/ports supervisor/alter supervisor/traffic supervisor/room supervisor/spaces supervisor/activation supervisor/mounts supervisor/turns supervisor/quota supervisor/ledger supervisor/events access supervisor/admission supervisor/ended supervisor/gate supervisor/pool supervisor/session supervisor/driver supervisor/command supervisor/doctor supervisor/failure supervisor/process supervisor/policy supervisor/records supervisor/result supervisor/machine cgroup cgroup/usage isolation isolation/client internal/fault internal/quantity",
		// packages of instructions that agents load
		"supervisor/skills":        "isolation/trees isolation/skillpath supervisor/skills/format supervisor/skills/unpack internal/durable internal/fault internal/quantity supervisor/skills/address",
		"supervisor/skills/format": "",
		"supervisor/skills/unpack": "internal/fault internal/tarball",
		"supervisor/drives":        "isolation/trees supervisor/policy/drive isolation isolation/skillpath supervisor/policy supervisor/skills/unpack internal/durable internal/fault internal/quantity internal/tarball",
		"supervisor/changes":       "supervisor/files supervisor/policy supervisor/process supervisor/session isolation isolation/files",
		"supervisor/outputs":       "supervisor/files supervisor/policy supervisor/session isolation isolation/files internal/fault",
		"supervisor/environments":  "supervisor/policy supervisor/result supervisor/session isolation internal/fault internal/pip internal/quantity",
		"supervisor/files":         "isolation/trees supervisor/policy/filelimits supervisor/command supervisor/policy supervisor/result supervisor/session isolation isolation/files internal/fault",
		// ways in
		"relay/api":                 "internal/quantity",
		"relay/client":              "relay/api internal/quantity internal/trace",
		"relay/openapi":             "",
		"relay/wire":                "isolation/limited supervisor/traffic supervisor/outputs supervisor/mounts supervisor/activation relay/api cgroup supervisor supervisor/policy supervisor/process isolation internal/fault internal/quantity supervisor/files supervisor/changes isolation/files supervisor/policy/drive",
		"relay/stream":              "supervisor/outputs relay/api relay/wire supervisor supervisor/policy supervisor/process internal/fault supervisor/changes",
		"relay/metrics":             "supervisor/events",
		"relay/vigil":               "",
		"relay/load":                "access relay/wire internal/fault internal/quantity",
		"relay/route":               "access/previews supervisor/drives access access/gate relay/api relay/load relay/stream relay/wire supervisor supervisor/process internal/fault internal/quantity relay/metrics supervisor/audit supervisor/events supervisor/recent supervisor/images supervisor/skills",
		"relay/grants":              "access access/grants relay/api relay/route supervisor/events internal/fault",
		"relay/trail":               "relay/api relay/route supervisor/audit supervisor/events supervisor/recent internal/fault internal/trace",
		"relay/seeing":              "access relay/api relay/route supervisor/audit supervisor/events internal/fault",
		"relay/host":                "access internal/fault internal/quantity supervisor relay/api relay/openapi relay/route relay/wire isolation",
		"relay/processes":           "relay/api relay/route relay/stream relay/wire supervisor supervisor/process internal/fault internal/quantity",
		"relay/sessions":            "relay/mcp/brief supervisor/outputs relay/api relay/processes relay/route relay/stream relay/wire supervisor supervisor/policy internal/fault internal/quantity supervisor/changes",
		"relay/logs":                "relay/api relay/route relay/stream relay/wire supervisor/process isolation/output internal/fault internal/quantity",
		"relay/files":               "isolation/trees supervisor/changes relay/api relay/route relay/wire supervisor supervisor/files isolation/files internal/fault",
		"supervisor/skills/address": "internal/fault",
		"relay/download":            "internal/fault supervisor/skills/address",
		"relay/images":              "relay/api relay/files relay/route supervisor/files supervisor/images isolation/files internal/fault",
		"relay/client/images":       "relay/api relay/client",
		"relay/skills":              "supervisor/environments access internal/fault isolation/files relay/api relay/download relay/route relay/wire supervisor/files supervisor/skills supervisor/skills/address",
		"relay/client/skills":       "relay/api relay/client",
		// the tools of MCP, which boxctl serves on standard input and output
		"relay/mcp/brief": "relay/api",
		"relay/mcp/kept":  "",
		"relay/mcp/serve": "relay/client relay/mcp/boxes relay/mcp/brief relay/mcp/kept relay/mcp/tools",
		"relay/mcp":       "internal/fault internal/trace relay/api relay/client relay/mcp/boxes relay/mcp/kept relay/mcp/serve relay/route",
		"relay/mcp/boxes": "relay/api relay/client internal/fault internal/quantity",
		"relay/mcp/tools": "relay/mcp/boxes relay/mcp/kept relay/api relay/client relay/client/show relay/client/skills internal/fault internal/quantity",
		// LangBot's dialect
		"relay/actionrpc/lax":      "",
		"relay/actionrpc/envelope": "relay/actionrpc/lax",
		"relay/actionrpc/fence":    "relay/actionrpc/envelope",
		"relay/actionrpc/model":    "relay/actionrpc/envelope relay/actionrpc/lax",
		"relay/actionrpc/grants":   "relay/actionrpc/envelope relay/actionrpc/lax",
		"relay/actionrpc/setup":    "internal/durable relay/actionrpc/envelope relay/actionrpc/grants relay/actionrpc/lax",
		"relay/actionrpc/boxes":    "relay/actionrpc/envelope relay/actionrpc/model relay/actionrpc/setup supervisor supervisor/activation supervisor/policy supervisor/process supervisor/result isolation internal/fault internal/quantity supervisor/files supervisor/machine isolation/files",
		"relay/actionrpc/uploads":  "relay/actionrpc/envelope relay/actionrpc/lax",
		"relay/actionrpc/intake":   "relay/actionrpc/envelope",
		"relay/actionrpc/attach":   "relay/actionrpc/boxes relay/actionrpc/intake relay/actionrpc/model supervisor/process",
		"relay/actionrpc/skills":   "internal/fault internal/durable relay/actionrpc/boxes relay/actionrpc/envelope relay/actionrpc/lax relay/actionrpc/model relay/actionrpc/uploads supervisor/skills supervisor/skills/format",
		"relay/actionrpc":          "isolation relay/actionrpc/grants access access/gate relay/actionrpc/skills relay/actionrpc/attach relay/actionrpc/boxes relay/actionrpc/envelope relay/actionrpc/fence relay/actionrpc/intake relay/actionrpc/lax relay/actionrpc/model relay/actionrpc/setup relay/actionrpc/uploads relay/load relay/route supervisor supervisor/audit supervisor/policy supervisor/recent supervisor/skills internal/fault internal/trace",
		"relay/spaces":             "relay/api relay/route supervisor supervisor/policy supervisor/spaces internal/quantity",
		"relay/drives":             "relay/api relay/route relay/wire supervisor/activation supervisor/drives supervisor/files supervisor/outputs supervisor/policy isolation/files internal/fault",
		"relay/mounts":             "relay/api relay/route supervisor/policy internal/fault",
		"relay/previews":           "access access/gate access/previews access/tokens internal/fault internal/quantity relay/api relay/load relay/route supervisor supervisor/ports",
		"relay/ports":              "relay/api relay/route supervisor/ports internal/fault",
		"relay":                    "access/previews relay/previews relay/ports relay/mcp relay/images supervisor/images relay/spaces relay/mounts access access/gate relay/api relay/grants relay/host relay/load relay/logs relay/processes relay/route relay/sessions relay/vigil supervisor internal/fault relay/seeing relay/trail relay/files relay/skills supervisor/skills relay/drives supervisor/drives",
		"relay/client/mounts":      "relay/api relay/client",
		"relay/client/ports":       "relay/api relay/client",
		"relay/client/grants":      "relay/api relay/client",
		"relay/client/spaces":      "relay/api relay/client",
		"relay/client/drives":      "relay/api relay/client",
		"relay/client/show":        "relay/api relay/client internal/quantity internal/tty",
		// a room of its own, so that boxctl stays what one can read
		"relay/client/complete": "relay/api relay/client relay/client/show",
		// programs
		"cmd/boxinit":        "isolation/inside",
		"cmd/boxfiles":       "isolation/limited isolation/files isolation/files/layers isolation/files/serve",
		"cmd/boxkeeper":      "isolation isolation/bounds isolation/errands isolation/lending isolation/keeper isolation/network isolation/network/rule isolation/zygote cgroup/tree",
		"cmd/boxnames":       "isolation/network/counter isolation/network/resolve internal/fdpass",
		"cmd/boxd/config":    "supervisor/images isolation/network/rule supervisor/policy/egress access/rules relay/actionrpc/setup supervisor/audit supervisor/policy systemd/journal isolation cgroup internal/quantity supervisor/skills supervisor/drives",
		"cmd/boxd":           "access supervisor/policy/egress relay/actionrpc/setup supervisor/activation supervisor/secrets access/previews isolation/network/names isolation/network/resolve supervisor/traffic supervisor/images isolation/network/talk supervisor/resolving internal/fault internal/fdpass internal/slack access/gate access/grants access/rules cmd/boxd/config relay relay/actionrpc relay/api supervisor supervisor/driver supervisor/policy isolation isolation/client systemd supervisor/events supervisor/recent supervisor/audit systemd/journal relay/metrics relay/route supervisor/leaks supervisor/skills supervisor/drives",
		"cmd/boxctl/ctl":     "relay/client internal/quantity internal/tarball internal/tty",
		"cmd/boxctl/bucket":  "internal/quantity",
		"cmd/boxctl/account": "cmd/boxctl/ctl relay/client/show",
		"cmd/boxctl/access":  "cmd/boxctl/ctl relay/api relay/client/grants internal/quantity",
		"cmd/boxctl/config":  "cmd/boxctl/ctl relay/api relay/client relay/client/show",
		"cmd/boxctl/seeing":  "cmd/boxctl/ctl internal/chain relay/api relay/client",
		"cmd/boxctl/life":    "cmd/boxctl/ctl relay/api relay/client/show",
		"cmd/boxctl/skills":  "cmd/boxctl/ctl internal/quantity internal/tarball relay/api relay/client/show relay/client/skills",
		"cmd/boxctl/images":  "cmd/boxctl/ctl cmd/boxctl/images/pull internal/quantity internal/tarball internal/tty relay/api relay/client/images",
		// what a registry says is parsed here, and not where images are kept
		"cmd/boxctl/images/pull": "",
		"cmd/boxctl/files":       "relay/client/images cmd/boxctl/ctl internal/quantity internal/tarball internal/tty relay/api relay/client relay/client/show",
		"cmd/boxctl/drives":      "cmd/boxctl/bucket cmd/boxctl/ctl internal/quantity relay/api relay/client/drives relay/client/show",
		// the MCP server
		"cmd/boxctl/mcp/wire":    "",
		"cmd/boxctl/mcp/servers": "internal/fault",
		"cmd/boxctl/mcp/project": "internal/pip cmd/boxctl/mcp/servers relay/api",
		"cmd/boxctl/mcp/host":    "cmd/boxctl/mcp/project internal/quantity internal/tarball relay/api relay/client relay/mcp/boxes",
		"cmd/boxctl/mcp/past":    "internal/durable",
		"cmd/boxctl/mcp":         "cmd/boxctl/ctl cmd/boxctl/mcp/past cmd/boxctl/mcp/project cmd/boxctl/mcp/host cmd/boxctl/mcp/servers cmd/boxctl/mcp/wire relay/api relay/client relay/client/show relay/mcp/boxes relay/mcp/kept relay/mcp/serve",
		"cmd/boxctl/mounts":      "cmd/boxctl/ctl relay/api relay/client/mounts relay/client/show",
		"cmd/boxctl/spaces":      "cmd/boxctl/ctl internal/quantity relay/api relay/client/show relay/client/spaces",
		"cmd/boxctl/ports":       "cmd/boxctl/ctl relay/client relay/client/ports",
		"cmd/boxctl":             "cmd/boxctl/ports cmd/boxctl/drives cmd/boxctl/images cmd/boxctl/spaces cmd/boxctl/mounts cmd/boxctl/mcp cmd/boxctl/seeing cmd/boxctl/life cmd/boxctl/access cmd/boxctl/ctl cmd/boxctl/config relay/api relay/client relay/client/complete relay/client/show internal/quantity internal/tty cmd/boxctl/account cmd/boxctl/files cmd/boxctl/skills",
		// for tests alone
		"internal/boxtest":        "internal/quantity relay/api relay/client",
		"test/bench":              "relay/api relay/client",
		"test/run":                "internal/boxtest",
		"test/boxes/probe":        "",
		"test/survival/mcpserver": "",
	}
}

// mustNotLink lists what a program may not contain, with its dependencies counted in. What does not
// exist in the build any more fails too, so that no rule outlives its reason.
func mustNotLink() map[string][]string {
	return map[string][]string{
		// PID 1 of every box: small, and nothing that parses or connects.
		"cmd/boxinit": {"fmt", "net", "log", "encoding/json", "net/http", "reflect:never", module + "/isolation/keeper", module + "/isolation/disk", module + "/supervisor"},
		// It runs in boxes, and everything it does it does there.
		"cmd/boxfiles": {"net", "log", "net/http", "os/exec", module + "/supervisor", module + "/isolation/keeper", module + "/isolation/client"},
		// The privileged half parses one binary protocol and nothing else. It links net for the types of addresses that
		// the libraries of netlink and nftables have; it opens no connection.
		"cmd/boxkeeper": {"encoding/json", "net/http", "crypto/tls", "archive/tar", "archive/zip", module + "/isolation/files/serve", module + "/internal/tarball", module + "/supervisor", module + "/relay", "github.com/BurntSushi/toml"},
		// It speaks with strangers, and has nothing to do anything with. Requests of boxes are read by net/http.
		"cmd/boxnames": {"os/exec", module + "/supervisor", module + "/isolation/keeper", module + "/isolation/client", module + "/relay"},
		// A client knows the wire and nothing of the server.
		"cmd/boxctl": {module + "/supervisor", module + "/isolation", module + "/isolation/client", module + "/relay"},
		// boxd asks for what is privileged and cannot do it; its API's description is JSON when it is built.
		"cmd/boxd": {"github.com/getkin/kin-openapi/openapi3", module + "/isolation/keeper", module + "/isolation/records", module + "/isolation/sources", module + "/isolation/disk", module + "/isolation/rootfs", module + "/isolation/inside", module + "/isolation/seccomp", module + "/isolation/files/serve", module + "/isolation/files/verbs"},
	}
}

// prescribed are the libraries that shipped programs must use, and which of them do.
func prescribed() map[string][]string {
	return map[string][]string{
		"github.com/coreos/go-systemd/v22": {"cmd/boxd"},
		"github.com/containerd/cgroups/v3": {"cmd/boxd"},
		"golang.org/x/sys":                 {"cmd/boxd", "cmd/boxctl", "cmd/boxkeeper", "cmd/boxinit", "cmd/boxfiles"},
		"github.com/BurntSushi/toml":       {"cmd/boxd"},
		"github.com/creack/pty":            {"cmd/boxinit"},
	}
}

// sizes of the programs, static and stripped, in bytes. Of boxctl 2.2 MB are the library of MCP, 0.7 that of registries, 2 that of S3.
func maxSize() map[string]int64 {
	return map[string]int64{"boxinit": 2 << 20, "boxfiles": 4 << 20, "boxkeeper": 6 << 20, "boxnames": 9 << 20, "boxctl": 14 << 20, "boxd": 20 << 20}
}

type goPackage struct {
	ImportPath   string
	Dir          string
	Imports      []string
	Deps         []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// packages lists those that match, by their path in the module.
func packages(t *testing.T, patterns ...string) map[string]goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json"}, patterns...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string]goPackage{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")] = p
	}
}

func TestImportsPointDown(t *testing.T) {
	t.Parallel()
	allowed := mayImport()
	for name, p := range packages(t, "./...") {
		if len(p.GoFiles) == 0 {
			continue // tests alone
		}
		list, ok := allowed[name]
		if !ok {
			t.Errorf("%s is not on the map: write its sentence and its line first", name)
			continue
		}
		delete(allowed, name)
		for _, imp := range p.Imports {
			room, ours := strings.CutPrefix(imp, module+"/")
			if ours && !slices.Contains(strings.Fields(list), room) {
				t.Errorf("%s imports %s, which the map does not allow", name, room)
			}
		}
	}
	for name := range allowed {
		t.Errorf("%s is on the map and does not exist", name)
	}
	rooms := mayImport()
	for name, list := range rooms {
		for imp := range strings.FieldsSeq(list) {
			if _, ok := rooms[imp]; !ok {
				t.Errorf("%s may import %s, which is not on the map", name, imp)
			}
			if slices.Contains(strings.Fields(rooms[imp]), name) {
				t.Errorf("%s and %s may import each other", name, imp)
			}
		}
	}
}

func TestProgramsDoNotLink(t *testing.T) {
	t.Parallel()
	programs := packages(t, "./cmd/...")
	linked := map[string]bool{}
	for _, p := range packages(t, "./...") {
		for _, d := range append(p.Deps, p.ImportPath) {
			linked[d] = true
		}
	}
	for name, list := range mustNotLink() {
		for _, forbidden := range list {
			if strings.HasSuffix(forbidden, ":never") {
				continue
			}
			if slices.Contains(programs[name].Deps, forbidden) {
				t.Errorf("%s links %s", name, forbidden)
			}
			ours := strings.HasPrefix(forbidden, module)
			if ours && !linked[forbidden] {
				t.Errorf("%s must not link %s, which does not exist", name, forbidden)
			}
		}
	}
}

func TestPrescribedLibrariesAreUsed(t *testing.T) {
	t.Parallel()
	programs := packages(t, "./cmd/...")
	for library, users := range prescribed() {
		for _, name := range users {
			if !slices.ContainsFunc(programs[name].Deps, func(d string) bool { return d == library || strings.HasPrefix(d, library+"/") }) {
				t.Errorf("%s does not use %s", name, library)
			}
		}
	}
}

func TestProgramsAreStaticAndSmall(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"amd64", "arm64"} {
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "./cmd/...")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build for %s: %v: %s", arch, err, out)
		}
		for _, name := range slices.Sorted(maps.Keys(maxSize())) {
			path := filepath.Join(dir, name)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > maxSize()[name] {
				t.Errorf("%s for %s has %d bytes, more than %d", name, arch, info.Size(), maxSize()[name])
			}
			if interpreter(t, path) {
				t.Errorf("%s for %s is linked dynamically", name, arch)
			}
		}
	}
}

func TestEveryPackageHasOneShortComment(t *testing.T) {
	t.Parallel()
	const most = 12 // lines: what fits where a reader meets it
	for name, p := range packages(t, "./...") {
		var comments []string
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil {
				comments = append(comments, f.Doc.Text())
			}
		}
		switch {
		case len(p.GoFiles) == 0:
		case len(comments) != 1:
			t.Errorf("%s has %d package comments, not one", name, len(comments))
		case strings.Count(comments[0], "\n") > most:
			t.Errorf("the package comment of %s is longer than %d lines", name, most)
		}
	}
}

func TestFilesBeginWithTheirLicence(t *testing.T) {
	t.Parallel()
	for name, p := range packages(t, "./...") {
		for _, file := range p.GoFiles {
			data, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			// Generated files begin with that.
			if !bytes.HasPrefix(data, []byte("// SPDX-License-Identifier: Apache-2.0\n")) && !bytes.Contains(data, []byte("\n// SPDX-License-Identifier: Apache-2.0\n")) {
				t.Errorf("%s/%s does not begin with its licence", name, file)
			}
		}
	}
}
