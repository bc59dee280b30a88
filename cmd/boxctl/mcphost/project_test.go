// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"io/fs"
	"maps"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/relay/api"
)

func host() *ProjectHost {
	files := fstest.MapFS{}
	for _, name := range []string{
		"usr/bin/python3", "home/me/lone.py", "home/me/notes/x.txt",
		"home/me/py/pyproject.toml", "home/me/py/src/server.py", "home/me/py/.venv/pyvenv.cfg", "home/me/py/.venv/bin/python", "home/me/py/.venv/bin/serve", "home/me/py/.git/HEAD",
		"home/me/js/package.json", "home/me/js/package-lock.json", "home/me/js/dist/index.js", "home/me/js/node_modules/a/index.js",
		"home/me/plain/server.py", "home/me/.nvm/v22/bin/node", "srv/old/requirements.txt", "srv/old/setup.py", "srv/old/run.py",
	} {
		files[name] = &fstest.MapFile{Data: []byte("x")}
	}
	files["tmp"] = &fstest.MapFile{Mode: fs.ModeDir | fs.ModeSticky | 0o777}
	files["tmp/x.py"] = &fstest.MapFile{Data: []byte("x")}
	return &ProjectHost{Root: files, Cwd: "/home/me", Home: "/home/me"}
}

func TestAProjectIsFoundByItsCommand(t *testing.T) {
	t.Parallel()
	type is struct {
		Dir, Command, Cwd string
		Args, From        []string
	}
	server := func(command string, args ...string) Server {
		return Server{Command: command, Args: args}
	}
	in := func(cwd string, s Server) Server {
		s.Cwd = cwd
		return s
	}
	const place = projectDir
	for name, tc := range map[string]struct {
		server Server
		mounts []api.Mount
		want   is
	}{
		"a script of a project":         {server("python3", "/home/me/py/src/server.py", "--root=/home/me/py/data"), nil, is{"/home/me/py", "python3", place, []string{place + "/src/server.py", "--root=" + place + "/data"}, []string{"pyproject.toml"}}},
		"python of its environment":     {server("/home/me/py/.venv/bin/python", "-m", "server"), nil, is{"/home/me/py", "python3", place, []string{"-m", "server"}, []string{"pyproject.toml"}}},
		"a program of its environment":  {server("/home/me/py/.venv/bin/serve"), nil, is{"/home/me/py", installDir + "/bin/serve", place, nil, []string{"pyproject.toml"}}},
		"node of the host's own":        {server("/home/me/.nvm/v22/bin/node", "/home/me/js/dist/index.js"), nil, is{"/home/me/js", "node", place, []string{place + "/dist/index.js"}, []string{"package.json"}}},
		"a directory of the entry":      {in("/home/me/js", server("node", "dist/index.js")), nil, is{"/home/me/js", "node", place, []string{"dist/index.js"}, []string{"package.json"}}},
		"an option of the runner":       {server("uv", "run", "--directory", "/home/me/py", "serve"), nil, is{"/home/me/py", "uv", place, []string{"run", "--directory", place, "serve"}, []string{"pyproject.toml"}}},
		"a relative script":             {server("python3", "plain/server.py"), nil, is{"/home/me/plain", "python3", place, []string{place + "/server.py"}, nil}},
		"two lists":                     {server("python3", "/srv/old/run.py"), nil, is{"/srv/old", "python3", place, []string{place + "/run.py"}, []string{"requirements.txt", "setup.py"}}},
		"a script in the home itself":   {server("python3", "/home/me/lone.py"), nil, is{"", "python3", "", []string{"/home/me/lone.py"}, nil}},
		"a script where all may write":  {server("python3", "/tmp/x.py"), nil, is{"", "python3", "", []string{"/tmp/x.py"}, nil}},
		"data is no project":            {server("npx", "-y", "@scope/server-filesystem", "/home/me/notes"), nil, is{"", "npx", "", []string{"-y", "@scope/server-filesystem", "/home/me/notes"}, nil}},
		"a program of the box":          {server("/usr/bin/python3", "-c", "x"), nil, is{"", "/usr/bin/python3", "", []string{"-c", "x"}, nil}},
		"what is not there":             {server("/no/such/server"), nil, is{"", "/no/such/server", "", nil, nil}},
		"a mount's source":              {server("python3", "/home/me/py/src/server.py"), []api.Mount{{Source: "/home/me/py", Target: "/opt/py"}}, is{"", "python3", "", []string{"/opt/py/src/server.py"}, nil}},
		"a path that is inside already": {server("python3", "/home/me/py/src/server.py"), []api.Mount{{Source: "/x", Target: "/home/me/py"}}, is{"", "python3", "", []string{"/home/me/py/src/server.py"}, nil}},
		"data of a mount":               {server("npx", "fs", "/home/me/notes/x"), []api.Mount{{Source: "/home/me/notes", Target: "/data"}}, is{"", "npx", "", []string{"fs", "/data/x"}, nil}},
	} {
		p := MakePlan(host(), &tc.server, tc.mounts)
		got := is{p.dir, p.Server.Command, p.Server.Cwd, p.Server.Args, nil}
		for _, i := range p.installs {
			got.From = append(got.From, i.file)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestHostOnlyFilesOfAProjectAreNotCopied(t *testing.T) {
	t.Parallel()
	py := MakePlan(host(), &Server{Command: "/home/me/py/.venv/bin/serve", Env: map[string]string{"CONFIG": "/home/me/py/c.toml", "PATH": "/home/me/py/.venv/bin"}}, nil)
	if diff := cmp.Diff([]string{"pyproject.toml", "src"}, py.names); diff != "" {
		t.Error(diff)
	}
	want := map[string]string{"CONFIG": projectDir + "/c.toml", "PATH": installDir + "/bin", "PYTHONUSERBASE": installDir}
	if diff := cmp.Diff(want, py.Server.Env); diff != "" {
		t.Error(diff)
	}
	js := MakePlan(host(), &Server{Command: "node", Args: []string{"/home/me/js/dist/index.js"}}, nil)
	if diff := cmp.Diff([]string{"dist", "package-lock.json", "package.json"}, js.names); diff != "" || js.installs[0].argv[1] != "ci" {
		t.Errorf(`diff = %v, js.installs = %v, want diff == "" and js.installs[0].argv[1] == "ci"`, diff, js.installs)
	}
}

func FuzzMake(f *testing.F) {
	f.Add("python3", "/home/me/py/src/server.py", "", "/home/me/py")
	f.Add("/home/me/py/.venv/bin/x", "--directory", "../..", "/")
	f.Fuzz(func(t *testing.T, command, arg, cwd, source string) {
		p := MakePlan(host(), &Server{Command: command, Args: []string{arg, arg}, Cwd: cwd}, []api.Mount{{Source: source, Target: "/data"}})
		if p.dir == "/" || p.dir == "/home" || p.dir == "/home/me" || len(p.Server.Args) != 2 {
			t.Errorf(`p = %+v, want p.dir != "/" and p.dir != "/home" and p.dir != "/home/me" and len(p.Server.Args) == 2`,
				p)
		}
	})
}

func TestVariablesOfIndexesAreForInstallers(t *testing.T) {
	t.Parallel()
	got := Indexes([]string{
		"PIP_INDEX_URL=https://me:secret@i.example/simple?a=b", "PIP_CERT=/etc/mine", "PIP_EXTRA_INDEX_URL=given otherwise", "pip_index_url=x", "NPM_CONFIG_REGISTRY=r",
		"npm_config_@mine:registry=s", "npm_config_prefix=/home/me", "npm_config_proxy=p", "PATH=/bin", "=x", " =x", "PIP_INDEX_URL PIP_PRE=x",
	}, map[string]string{"PIP_EXTRA_INDEX_URL": "y", "NPM_CONFIG_PROXY": "q"})
	want := map[string]string{"PIP_INDEX_URL": "https://me:secret@i.example/simple?a=b", "NPM_CONFIG_REGISTRY": "r", "npm_config_@mine:registry": "s"}
	if !maps.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
