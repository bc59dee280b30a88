// SPDX-License-Identifier: Apache-2.0

package arch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/doc"
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

// TestMain runs the tests in the module's root.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// Limits of the tree: how many packages a reader has to know, and how deep a chain of imports may be.
const (
	maxPackages = 58
	maxDepth    = 9
)

// area is a part of the tree, whose packages may import each other, and those of the areas that it names.
type area struct{ dir, may string }

// areas returns all areas. A package belongs to the first one that its directory is in.
func areas() []area {
	return []area{
		// Sizes and limits in the API, so that other programs can import them as they can relay/client.
		{"quantity", ""},
		{"limits", "quantity"},
		{"internal/boxtest", "internal relay/api relay/client limits quantity"},
		{"internal", ""},
		{"cgroup", ""},
		{"isolation", "cgroup internal"},
		{"systemd", "internal"},
		{"skills", "isolation internal quantity"},
		{"supervisor/access", "internal limits quantity"},
		{"supervisor", "supervisor/access skills systemd isolation cgroup internal limits quantity"},
		// A client knows the wire types, and nothing of the server; what its callers need is not internal.
		{"relay/api", "limits quantity"},
		{"relay/client", "relay/api internal limits quantity"},
		{"relay/render", "relay/client relay/api internal limits quantity"},
		{"relay/conns", "relay/api supervisor/access internal limits quantity"},
		// The parts of protocols that a gateway reads too.
		{"relay/e2b/wire", "supervisor/access internal limits quantity"},
		{"relay/actionrpc/wire", "supervisor/access internal limits quantity"},
		{"relay/mcp", "relay/render relay/client relay/api internal limits quantity"},
		{"relay", "relay/conns relay/e2b/wire relay/actionrpc/wire relay/mcp relay/render relay/client relay/api supervisor supervisor/access skills isolation cgroup internal limits quantity"},
		{"cmd/boxctl", "relay/mcp relay/render relay/client relay/api internal limits quantity"},
		// A gateway authenticates callers as boxd does; it has nothing else of the server.
		{"cmd/boxfleet", "relay/conns relay/e2b/wire relay/actionrpc/wire relay/client relay/api supervisor/access internal limits quantity"},
		{"cmd/boxinit", "isolation cgroup internal"},
		{"cmd/boxfiles", "isolation internal"},
		{"cmd/boxkeeper", "isolation cgroup internal"},
		{"cmd/boxnames", "isolation internal"},
		{"cmd/boxnet", "isolation internal"},
		{"cmd/boxd", "relay relay/api supervisor supervisor/access skills systemd isolation cgroup internal limits quantity"},
		{"test", "internal internal/boxtest relay/api relay/client limits quantity"},
		{"packaging", ""},
	}
}

// areaOf returns the area of a package.
func areaOf(name string) (area, bool) {
	for _, a := range areas() {
		if name == a.dir || strings.HasPrefix(name, a.dir+"/") {
			return a, true
		}
	}
	return area{}, false
}

// mustNotLink lists the packages that a program may not contain, not even through dependencies. A package that does not exist
// fails too, so that no rule outlives its reason.
func mustNotLink() map[string][]string {
	return map[string][]string{
		// PID 1 of every box: small, without parsers and connections, and without work before main, as in cryptography packages.
		"cmd/boxinit": {"fmt", "crypto/sha256", "encoding/hex", "net", "log", "encoding/json", "net/http", "reflect:never", module + "/isolation/disk", module + "/supervisor"},
		// A gateway authenticates callers as boxd does, and has nothing else of the server. Its NATS server is only for "boxfleet dev".
		"cmd/boxfleet": {module + "/relay", module + "/supervisor", module + "/isolation", module + "/isolation/client"},
		// It runs in boxes only.
		"cmd/boxfiles": {"net", "log", "net/http", "os/exec", module + "/supervisor", module + "/isolation/client"},
		// The privileged half parses one binary protocol and nothing else. What the network of boxes needs is in boxnet.
		"cmd/boxkeeper": {"net", module + "/isolation/network", "github.com/vishvananda/netlink", "github.com/google/nftables", "encoding/json", "net/http", "crypto/tls", "archive/tar", "archive/zip", module + "/internal/archive", module + "/supervisor", module + "/relay", "github.com/BurntSushi/toml", "github.com/nats-io/nats.go"},
		// It has a part of the keeper's privilege, for the network only.
		"cmd/boxnet": {"encoding/json", "net/http", "crypto/tls", module + "/isolation/mounts", module + "/isolation/disk", module + "/supervisor", module + "/relay"},
		// It talks to untrusted peers, and cannot do anything else. net/http reads the requests of boxes.
		"cmd/boxnames": {"os/exec", module + "/supervisor", module + "/isolation/client", module + "/relay"},
		// A client knows the wire types and nothing of the server.
		"cmd/boxctl": {module + "/supervisor", module + "/isolation", module + "/isolation/client", module + "/relay"},
		// boxd requests privileged operations and cannot do them; the API description is converted to JSON at build time.
		"cmd/boxd": {"github.com/nats-io/nats.go", "github.com/getkin/kin-openapi/openapi3", module + "/isolation/mounts", module + "/isolation/disk", module + "/isolation/seccomp"},
	}
}

// requiredLibraries returns the libraries that shipped programs must use, and which of them do.
func requiredLibraries() map[string][]string {
	return map[string][]string{
		"github.com/coreos/go-systemd/v22": {"cmd/boxd"},
		"github.com/containerd/cgroups/v3": {"cmd/boxd"},
		"golang.org/x/sys":                 {"cmd/boxd", "cmd/boxctl", "cmd/boxkeeper", "cmd/boxinit", "cmd/boxfiles"},
		"github.com/BurntSushi/toml":       {"cmd/boxd"},
		"github.com/creack/pty":            {"cmd/boxinit"},
	}
}

// maxSize returns the maximum size of each program, static and stripped, in bytes. 9 MB of boxfleet are the NATS server, 1.6 MB
// of boxd the library for E2B's RPCs, and of boxctl 2.2 MB are the library for MCP, 0.7 that for registries, 2 that for S3.
func maxSize() map[string]int64 {
	return map[string]int64{"boxinit": 2 << 20, "boxfiles": 4 << 20, "boxkeeper": 4 << 20, "boxnet": 5 << 20, "boxnames": 9 << 20, "boxctl": 15 << 20, "boxd": 22<<20 + 128<<10, "boxfleet": 22 << 20}
}

// maxLinesOurs and maxLinesAll bound what runs as root of the host: lines of Go without tests and the standard library, of this
// module and of all modules. docs/design/privilege.md says what they are and which could go.
const (
	maxLinesOurs = 20_700
	maxLinesAll  = 43_200
)

// maxWritable is the maximum of data and bss of PID 1 of a box, in bytes.
const maxWritable = 1 << 20

type goPackage struct {
	ImportPath   string
	Dir          string
	Standard     bool
	Imports      []string
	Deps         []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// packages lists the matching packages, by their path in the module.
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
	used := map[string]bool{}
	for name, p := range packages(t, "./...") {
		if len(p.GoFiles) == 0 {
			continue // only tests
		}
		from, ok := areaOf(name)
		if !ok {
			t.Errorf("%s is in no area", name)
			continue
		}
		used[from.dir] = true
		for _, imp := range p.Imports {
			other, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			if to, _ := areaOf(other); to.dir != from.dir && !slices.Contains(strings.Fields(from.may), to.dir) {
				t.Errorf("%s imports %s: packages of %s may import those of %q", name, other, from.dir, from.may)
			}
		}
	}
	for i, a := range areas() {
		if !used[a.dir] && a.dir != "packaging" {
			t.Errorf("no package is in %s", a.dir)
		}
		for below := range strings.FieldsSeq(a.may) {
			at := slices.IndexFunc(areas(), func(b area) bool { return b.dir == below })
			if at < 0 || at > i && a.dir != "internal/boxtest" {
				t.Errorf("%s may import %s, which is not above it on the map", a.dir, below)
			}
		}
	}
}

// ofTheProduct reports whether a package is neither a test nor a tool.
func ofTheProduct(name string) bool {
	return name != "internal/boxtest" && !strings.HasPrefix(name, "test/") && !strings.HasPrefix(name, "packaging")
}

// A single person should be able to know all packages, and to follow a call down.
func TestTheTreeIsSmallAndFlat(t *testing.T) {
	t.Parallel()
	all := packages(t, "./...")
	maps.DeleteFunc(all, func(name string, p goPackage) bool {
		return len(p.GoFiles) == 0 || !ofTheProduct(name)
	})
	if len(all) > maxPackages {
		t.Errorf("the product has %d packages, more than %d", len(all), maxPackages)
	}
	depths := map[string]int{}
	var depth func(name string) int
	depth = func(name string) int {
		if d := depths[name]; d > 0 {
			return d
		}
		below := 0
		for _, imp := range all[name].Imports {
			if other, ours := strings.CutPrefix(imp, module+"/"); ours {
				below = max(below, depth(other))
			}
		}
		depths[name] = below + 1
		return below + 1
	}
	for name := range all {
		if d := depth(name); d > maxDepth {
			t.Errorf("%s is %d imports deep, more than %d", name, d, maxDepth)
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
	for library, users := range requiredLibraries() {
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
			// It counts against the memory limit of a box (RLIMIT_DATA, setrlimit(2)), which may be small.
			if size := writable(t, path); name == "boxinit" && size > maxWritable {
				t.Errorf("%s for %s has %d bytes of data and bss, more than %d", name, arch, size, maxWritable)
			}
			if interpreter(t, path) {
				t.Errorf("%s for %s is linked dynamically", name, arch)
			}
		}
	}
}

// The amount of code that runs as root must not grow unnoticed.
func TestThePrivilegedProgramDoesNotGrow(t *testing.T) {
	t.Parallel()
	program := packages(t, "./cmd/boxkeeper")["cmd/boxkeeper"]
	ours, all := 0, 0
	for _, p := range packages(t, append(program.Deps, program.ImportPath)...) {
		if p.Standard {
			continue
		}
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			lines := bytes.Count(text, []byte("\n"))
			all += lines
			if strings.HasPrefix(p.ImportPath, module) {
				ours += lines
			}
		}
	}
	t.Logf("boxkeeper has %d lines of this module, and %d with those of others", ours, all)
	if ours > maxLinesOurs || ours == 0 {
		t.Errorf("boxkeeper has %d lines of this module, more than %d", ours, maxLinesOurs)
	}
	if all > maxLinesAll || all <= ours {
		t.Errorf("boxkeeper has %d lines with those of other modules, more than %d", all, maxLinesAll)
	}
}

func TestEveryPackageHasOneShortComment(t *testing.T) {
	t.Parallel()
	const most = 12 // in lines, to stay readable
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
		case ofTheProduct(name) && strings.Contains(new(doc.Package).Synopsis(comments[0]), " and "):
			t.Errorf(`%s is two things: new(doc.Package).Synopsis(comments[0]) = %s, want not ofTheProduct(name) or new(doc.Package).Synopsis(comments[0]) without " and "`,
				name, new(doc.Package).Synopsis(comments[0]))
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
			// Generated files begin with another line.
			if !bytes.HasPrefix(data, []byte("// SPDX-License-Identifier: Apache-2.0\n")) && !bytes.Contains(data, []byte("\n// SPDX-License-Identifier: Apache-2.0\n")) {
				t.Errorf("%s/%s does not begin with its licence", name, file)
			}
		}
	}
}
