// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// bare returns a configuration without any built-in value, so that a value missing in box.toml shows.
func bare() Config {
	return Config{Config: policy.Config{
		Profiles: map[string]policy.Profile{"default": {}, "offline_readonly": {}, "network_basic": {}, "network_extended": {}, "mcp": {}, "e2b": {}},
		Policies: map[string]policy.Policy{"default": {}},
	}}
}

func TestShippedFileEqualsTheBuiltInConfiguration(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../box.toml")
	if err != nil {
		t.Fatal(err)
	}
	got := bare()
	if err := got.decode("box.toml", string(data)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaultConfig(), got); diff != "" {
		t.Fatalf("box.toml differs from the built-in configuration (-built-in +file):\n%s", diff)
	}
}

// The packages install the file with its values commented out, so that a drop-in only overrides the defaults.
func TestTheInstalledFileSetsNothing(t *testing.T) {
	t.Parallel()
	text, err := exec.CommandContext(t.Context(), "../../packaging/config.sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "box.toml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := loadConfig(path, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Origins) > 0 {
		t.Errorf("it sets %v", got.Origins)
	}
	got.Origins = nil
	want := defaultConfig()
	want.defaultCaps() // as each Load does
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-built-in +installed:\n%s", diff)
	}
	if err := os.Mkdir(path+".d", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path+".d", "x.toml"), []byte("[sessions]\nmax = 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err = loadConfig(path, true, nil); err != nil || got.Sessions.Max != 7 || got.Sessions.MaxPerOwner != 7 {
		t.Errorf("with a drop-in: got.Sessions = %+v, err = %v, want no error and got.Sessions.Max == 7 and got.Sessions.MaxPerOwner == 7",
			got.Sessions, err)
	}
	// Every key of the file is in it, commented out.
	shipped, err := os.ReadFile("../../box.toml")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(shipped)) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && line[0] != '#' && line[0] != '[' && !strings.Contains(string(text), "\n#"+line) {
			t.Errorf("there is no line #%s", line)
		}
	}
}

func TestEveryKeyOfTheShippedFileIsExplained(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../box.toml")
	if err != nil {
		t.Fatal(err)
	}
	explained, previous, table := map[string]bool{}, "", ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
			table = line
		}
		if key, _, ok := strings.Cut(line, " = "); ok && !strings.HasPrefix(line, "#") {
			// Tables of one kind explain their keys once; [env] and [languages] explain the table.
			free := table == "[env]" || strings.HasPrefix(table, "[languages.")
			explained[key] = explained[key] || free || strings.HasPrefix(previous, "#") || strings.Contains(line, " # ")
		}
		previous = line
	}
	for key, ok := range explained {
		if !ok {
			t.Errorf("%s is not explained", key)
		}
	}
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	cfg := defaultConfig()
	if err := cfg.Check("built-in"); err != nil {
		t.Fatal(err)
	}
}

func TestBadConfigurationNamesFileLineAndWhatIsAllowed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"unknown key", "[limits]\nbest_efort = []\n", []string{"x.toml", "line 2", "limits.best_efort", `did you mean "best_effort"?`}},
		{"unknown table", "[sesions]\nmax = 1\n", []string{"line 1", "sesions"}},
		{"unknown profile key", "[profiles.default]\nmemroy = \"1GiB\"\n", []string{"line 2", "profiles.default.memroy", `did you mean "memory"?`}},
		{"case", "[sessions]\nMax = 3\n", []string{"line 2", "Max", "lower case"}},
		{"syntax", "[sessions]\nmax = \n", []string{"line 2"}},
		{"bare integer as a size", "[profiles.default]\nmemory = 512\n", []string{"profiles.default", "512MiB"}},
		{"bare integer as a duration", "[profiles.default]\nttl = 5\n", []string{"profiles.default", "30s"}},
		{"pigs", "[profiles.default]\nmemory = \"512 pigs\"\n", []string{"profiles.default", "512MiB"}},
		{"wrong type", "[sessions]\nmax = \"many\"\n", []string{"max"}},
		{"out of range", "[sessions]\nmax = 0\n", []string{"sessions.max", "1 to 16384"}},
		{"more boxes than ids", "[sessions]\nmax = 4097\n", []string{"sessions.max = 4097", "1 to 4096", "ids.count"}},
		{"more boxes than few more ids", "[sessions]\nmax = 6000\n[ids]\ncount = 5000\n", []string{"sessions.max = 6000", "1 to 5000", "ids.count"}},
		{"none for an owner", "[sessions]\nmax_per_owner = 0\n", []string{"sessions.max_per_owner", "1 to 256"}},
		{"more for an owner than for all", "[sessions]\nmax = 3\nmax_per_owner = 4\n", []string{"sessions.max_per_owner", "1 to 3"}},
		{"an end at once", "[daemon]\nidle_exit = \"10ms\"\n", []string{"daemon.idle_exit", "0s, or 1s to 24h"}},
		{"an end in a week", "[daemon]\nidle_exit = \"168h\"\n", []string{"daemon.idle_exit", "0s, or 1s to 24h"}},
		{"unknown limit", "[limits]\nbest_effort = [\"luck\"]\n", []string{"limits.best_effort", "luck", "memory"}},
		{"unknown locked field", "[profiles.x]\nlocked = [\"colour\"]\n", []string{"profiles.x", "locked", "colour", "network"}},
		{"fewer by use than always", "[profiles.x]\nwarm = 4\nwarm_max = 3\n", []string{"profiles.x", "warm_max", "3", "0, or warm (4) to 64"}},
		{"more by use than there may be", "[profiles.x]\nwarm_max = 65\n", []string{"profiles.x", "warm_max", "65", "0, or warm (0) to 64"}},
		{"missing profile", "[sessions]\ndefault_profile = \"gone\"\n", []string{"sessions.default_profile", "gone", "offline_readonly"}},
		{"ids", "[ids]\nbase = 1000\n", []string{"ids.base", "65536"}},
		{"driver", "[cgroups]\ndriver = \"docker\"\n", []string{"cgroups.driver", "docker", "auto", "direct", "systemd"}},
		{"driver in capitals", "[cgroups]\ndriver = \"Systemd\"\n", []string{"cgroups.driver", "Systemd"}},
		{"no driver", "[cgroups]\ndriver = \"\"\n", []string{"cgroups.driver"}},
		{"scopes and no parent", "[cgroups]\ndriver = \"systemd\"\nparent = \"\"\n", []string{"cgroups.driver", "cgroups.parent"}},
		{"unknown stop", "[daemon]\non_stop = \"no\"\n", []string{"daemon.on_stop", "keep"}},
		{"relative runtime directory", "[daemon]\nruntime_dir = \"run\"\n", []string{"daemon.runtime_dir", "absolute"}},
		{"HTTP for everybody", "[daemon]\nhttp = \"0.0.0.0:5410\"\n", []string{"daemon.http", "loopback"}},
		{"HTTP by name", "[daemon]\nhttp = \"localhost:5410\"\n", []string{"daemon.http"}},
		{"a fleet in the clear", "[fleet]\nservers = [\"nats://10.0.0.1:4222\"]\n", []string{"fleet.servers", "tls://"}},
		{"a node where nobody can connect to", "[fleet]\nlisten = \"0.0.0.0:7443\"\n", []string{"fleet.listen", `"0.0.0.0:7443"`, "10.0.0.5:7443"}},
		{"a node without a port for gateways", "[fleet]\nlisten = \"10.0.0.5\"\n", []string{"fleet.listen", `"10.0.0.5"`, "10.0.0.5:7443"}},
		{"a node with a name that is no subject", "[fleet]\nname = \"a.b\"\n", []string{"fleet.name", `"a.b"`, "0-9 and -"}},
		{"a gateway with a short key", "[fleet.gateways.main]\nkey = \"AAAA\"\n", []string{"fleet.gateways.main.key", "32 bytes"}},
		{"a gateway that speaks for users", "[fleet.gateways.main]\nprincipals = [\"uid:1\"]\n", []string{"fleet.gateways.main.principals", `"uid:1"`}},
		{"spans by gRPC", "[traces]\nendpoint = \"grpc://127.0.0.1:4317\"\n", []string{"traces.endpoint", `"grpc://127.0.0.1:4317"`, "http://127.0.0.1:4318"}},
		{"secrets of a collector in the clear", "[traces]\nendpoint = \"http://10.0.0.1:4318\"\nheaders_file = \"/x\"\n", []string{"traces.endpoint", "https://"}},
		{"more spans than requests", "[traces]\nratio = 2.0\n", []string{"traces.ratio = 2", "0.0 to 1.0"}},
		{"a slip in the traces", "[traces]\nendpiont = \"\"\n", []string{"line 2", "traces.endpiont", `did you mean "endpoint"?`}},
		{"E2B for everybody", "[e2b]\nlisten = \"0.0.0.0:5420\"\n", []string{"e2b.listen", "loopback"}},
		{"E2B by a domain with a path", "[e2b]\ndomain = \"localhost/x\"\n", []string{"e2b.domain", "localhost:5420"}},
		{"E2B with a profile that is not there", "[e2b]\nprofile = \"gone\"\n", []string{"e2b.profile", "[profiles.NAME]"}},
		{"a template of E2B with such a profile", "[e2b.templates.x]\nprofile = \"gone\"\n", []string{"e2b.templates.x.profile"}},
		{"a kernel of Python that is none", "[e2b]\npython_kernel = \"jupyter\"\n", []string{"e2b.python_kernel", "auto, ipykernel or own"}},
		{"a template with such a kernel", "[e2b.templates.x]\npython_kernel = \"jupyter\"\n", []string{"e2b.templates.x.python_kernel"}},
		{"a template that begins nowhere", "[e2b.templates.x]\ncwd = \"app\"\n", []string{"e2b.templates.x.cwd", "absolute path"}},
		{"a template with a language that is none", "[e2b.templates.x]\nlanguages = [\"python\", \"r\"]\n", []string{"e2b.templates.x.languages", "bash, javascript, python or typescript"}},
		{"two templates of one name", "[e2b.templates.x]\naliases = [\"y\"]\n[e2b.templates.y]\n", []string{"e2b.templates.y", "e2b.templates.x"}},
		{"TLS where clients speak none", "[e2b]\ntls_listen = \"127.0.0.1:5443\"\n", []string{"e2b.tls_listen", "127.0.0.2:5443"}},
		{"TLS without a certificate", "[e2b]\ntls_listen = \"127.0.0.2:5443\"\n", []string{"e2b.certificate", "absolute path"}},
		{"a bucket that is no drive", "[e2b.object_storage]\n\"s3://b\" = \"results\"\n", []string{`e2b.object_storage."s3://b"`, "OWNER/PROJECT"}},
		{"unknown role", "[access]\ndefault_role = \"root\"\n", []string{"root", "viewer, user, operator or admin"}},
		{"principal of two", "[principals.Ci]\nuid = 1\ngid = 1\n", []string{"principals.Ci", "one of user, uid, group and gid"}},
		{"what people write for boxes", "[policy.alice]\nmax_boxes = 2\n", []string{`line 2: unknown key policy.alice.max_boxes; did you mean "sessions" (boxes at a time)?`}},
		{"what people write for a user", "[policy.alice]\nuser = \"alice\"\n", []string{`unknown key policy.alice.user; did you mean "principals" (whom it applies to)?`}},
		{"what people write for memory", "[policy.alice]\nmemory = \"1GiB\"\n", []string{`unknown key policy.alice.memory; did you mean "total_memory" (of all boxes`}},
		{"a slip in a policy", "[policy.alice]\nsesions = 2\n", []string{`did you mean "sessions"?`}},
		{"a slip in a table", "[sessions]\nmaks = 2\n", []string{`did you mean "max"?`}},
		{"a key of another table", "[image]\nbest_effort = []\n", []string{`did you mean "limits.best_effort"?`}},
		{"unknown key of a principal", "[principals.ci]\nroles = \"user\"\n", []string{"line 2", "principals.ci.roles"}},
		{"negative uid", "[principals.ci]\nuid = -1\n", []string{"uid"}},
		{"root by another name", "[principals.ci]\nuid = 0\n", []string{"principals.ci"}},
		{"unknown keeper", "[daemon]\nkeeper = \"none\"\n", []string{"daemon.keeper", "external"}},
		{"relative path", "[daemon]\nstate_dir = \"state\"\n", []string{"daemon.state_dir", "absolute"}},
		{"language", "[languages.python]\ninline = [\"python3\"]\nfile = [\"python3\", \"{file}\"]\n", []string{"languages.python", "{code}"}},
		{"fewer workspaces than sessions", "[workspaces]\nmax = 255\n", []string{"workspaces.max = 255", "256 (sessions.max) to 1000000"}},
		{"a store that is tiny", "[workspaces]\nstore_size = \"1MiB\"\n", []string{"workspaces.store_size = 1MiB", "64MiB"}},
		{"a small store of xfs", "[workspaces]\nstore_size = \"299MiB\"\nstore_filesystem = \"xfs\"\n", []string{"workspaces.store_size = 299MiB", "300MiB"}},
		{"a store of another kind", "[workspaces]\nstore_filesystem = \"btrfs\"\n", []string{"workspaces.store_filesystem", "btrfs", "ext4", "xfs"}},
		{"rule", "[mounts]\nallow = [{path = \"/srv\"}]\n", []string{"owner"}},
		{"nul in env", "[env]\nX = \"a\\u0000b\"\n", []string{"env.X", "NUL"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "x.toml")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := loadConfig(path, true, nil)
			if err == nil {
				t.Fatal("the bad configuration was accepted")
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
		})
	}
}

func TestDropInsComeOnTopInOrder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "box.toml")
	for name, text := range map[string]string{
		path:                  "[sessions]\nmax = 3\n[profiles.mine]\nmemory = \"1GiB\"\n",
		path + ".d/10-a.toml": "[sessions]\nmax = 4\n[profiles.mine]\npids = 99\n",
		path + ".d/20-b.toml": "[sessions]\nmax = 5\n[mounts]\nallow = [\"/srv/a\", {path = \"/srv/b\", owner = \"5:6\"}]\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := loadConfig(path, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if mine := cfg.Profiles["mine"]; cfg.Sessions.Max != 5 || mine.Memory != quantity.GiB || mine.Pids != 99 || mine.Network != "off" {
		t.Errorf("got max %d, profile %+v", cfg.Sessions.Max, mine)
	}
	if got := cfg.allow(); !slices.Equal(got, []string{"/srv/a", "/srv/b=5:6"}) {
		t.Errorf("allow = %v", got)
	}
	if _, err := loadConfig(path+".none", true, nil); err == nil {
		t.Error("no error for a missing file that -config names")
	}
	if _, err := loadConfig(path+".none", false, nil); err != nil {
		t.Errorf("a missing file that was not named: %v", err)
	}
}

func TestMaxPerOwnerFollowsASmallerMax(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": 128, "max = 256": 128, "max = 7": 7, "max = 1000": 128, "max = 1000\nmax_per_owner = 900": 900, "max_per_owner = 1": 1,
	} {
		path := filepath.Join(t.TempDir(), "box.toml")
		if err := os.WriteFile(path, []byte("[sessions]\n"+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if cfg, err := loadConfig(path, true, nil); err != nil || cfg.Sessions.MaxPerOwner != want {
			t.Errorf("%q: %d, %v, want %d", text, cfg.Sessions.MaxPerOwner, err, want)
		}
	}
}

func TestDropInsOfTheAdministratorHideThoseOfTheVendor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"vendor/10-a.toml", "vendor/20-b.toml", "boot/20-b.toml", "boot/30-c.toml", "etc/30-c.toml", "etc/05-d.toml", "etc/not"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := dropIns([]string{dir + "/vendor", dir + "/boot", dir + "/etc"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{dir + "/etc/05-d.toml", dir + "/vendor/10-a.toml", dir + "/boot/20-b.toml", dir + "/etc/30-c.toml"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := dropInDirs(defaultPath); len(got) != 3 || got[2] != "/etc/boxd/box.toml.d" {
		t.Errorf(`the packaged boxd reads %q, want len(got) == 3 and got[2] == "/etc/boxd/box.toml.d"`, got)
	}
	if got := dropInDirs("/x"); !slices.Equal(got, []string{"/x.d"}) {
		t.Errorf(`another reads %q, want []string{"/x.d"}`, got)
	}
}

func TestVariablesComeOnTop(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "box.toml")
	if err := os.WriteFile(path, []byte("\n[sessions]\nmax = 3\n[profiles.mine]\nmemory = \"1GiB\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := loadConfig(path, true, []string{
		"BOXD__SESSIONS__MAX=9", "BOXD__PROFILES__MINE__PIDS=77", "BOXD__PROFILES__MINE__TTL=5m", `BOXD__LIMITS__BEST_EFFORT=["cpu", "io"]`,
		"BOXD__ENV__MyName=a\"b\\c=\n1", "BOXD__DAEMON__SOCKET_GROUP=7", "BOXD_SOCKET=/nothing", "BOXD_=", "HOME=/x",
	})
	if err != nil {
		t.Fatal(err)
	}
	mine := cfg.Profiles["mine"]
	if cfg.Sessions.Max != 9 || mine.Pids != 77 || mine.Memory != quantity.GiB || time.Duration(mine.TTL) != 5*time.Minute ||
		!slices.Equal(cfg.Limits.BestEffort, []string{"cpu", "io"}) || cfg.Env["MyName"] != "a\"b\\c=\n1" || cfg.Daemon.SocketGroup != "7" {
		t.Errorf("max %d, mine %+v, best effort %q, env %q, group %q", cfg.Sessions.Max, mine, cfg.Limits.BestEffort, cfg.Env, cfg.Daemon.SocketGroup)
	}
	values, err := cfg.Values()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]ConfigValue{
		"sessions.max":         {"sessions.max", "9", "variable BOXD__SESSIONS__MAX"},
		"profiles.mine.memory": {"profiles.mine.memory", `"1GiB"`, path + ":5"},
		"profiles.mine.ttl":    {"profiles.mine.ttl", `"5m"`, "variable BOXD__PROFILES__MINE__TTL"},
		"ids.count":            {"ids.count", "4096", builtIn},
		"env.MyName":           {"env.MyName", "(not shown)", "variable BOXD__ENV__MyName"},
		"limits.best_effort":   {"limits.best_effort", `["cpu", "io"]`, "variable BOXD__LIMITS__BEST_EFFORT"},
	}
	for _, v := range values {
		if w, ok := want[v.Key]; ok && v != w {
			t.Errorf("%+v, want %+v", v, w)
		}
		delete(want, v.Key)
	}
	if len(want) > 0 {
		t.Errorf("not in the answer: want = %v, want len(want) == 0", want)
	}
	for _, bad := range []string{"BOXD__SESSIONS=1", "BOXD____MAX=1", "BOXD__SESSIONS__MAXX=1", "BOXD__SESSIONS__MAX=many", "BOXD__SESSIONS__MAX=1\nmax_per_owner = 1", "BOXD__PROFILES__MINE__TTL=\xff"} {
		name, _, _ := strings.Cut(bad, "=")
		if _, err := loadConfig(path, true, []string{bad}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: err = %v, want an error containing %q", bad, err, name)
		}
	}
}

// FuzzVariable sets any key to any text: it is refused by name, or the result is valid, and no other key changes.
func FuzzVariable(f *testing.F) {
	f.Add("SESSIONS__MAX", "9")
	f.Add("PROFILES__X__LOCKED", `["memory"]`)
	f.Add("ENV__A", "x\ny")
	f.Add("MOUNTS__ALLOW", `[{path = "/srv", owner = "1:1"}]`)
	f.Fuzz(func(t *testing.T, name, value string) {
		cfg := defaultConfig()
		cfg.Origins = map[string]string{}
		if err := cfg.decodeVariable(variablePrefix+name, value); err != nil {
			return
		}
		if len(cfg.Origins) > 1 && !strings.Contains(value, "{") {
			t.Fatalf("one variable has set %v", cfg.Origins)
		}
		if cfg.Check("fuzz") == nil {
			if _, err := cfg.Values(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzConfig feeds arbitrary files to the parser: it accepts or refuses them, and what it accepts is valid.
func FuzzConfig(f *testing.F) {
	data, err := os.ReadFile("../../box.toml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(data))
	f.Add("[profiles.x]\nlocked = [\"cpus\"]\ncpus = nan\n")
	f.Add("[limits\nbest_effort = 1")
	f.Add("[policy.x]\nprincipals = [\"uid:1\"]\ntotal_cpus = nan\nsession_template = \"{a}{b}\"\n[policy.x.ceilings]\nmemory = \"1B\"\n")
	f.Add("a.b.c = 1\n[a]\nb = 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		cfg := defaultConfig()
		if cfg.decode("fuzz", text) == nil && cfg.Check("fuzz") == nil {
			if cfg.Sessions.Max < 1 || len(cfg.Profiles) == 0 || cfg.Profiles["default"].Memory == 0 {
				t.Fatalf("accepted %+v", cfg)
			}
		}
	})
}
