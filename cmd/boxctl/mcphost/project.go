// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// Place is where a project is copied to in its box, and Extra what is installed for it.
const (
	projectDir = "/workspace/project"
	installDir = "/workspace/.installed"
)

// Plan says how a server runs in a box.
type Plan struct {
	Server   Server    // with the paths of the box
	dir      string    // of the host, that is copied to Place; "": none
	names    []string  // of what is copied in Dir
	installs []install // to be done one after the other, in Place

	InstallEnv map[string]string // of those beside what the server has, which wins
}

// install is a command that installs what a file of the project lists.
type install struct {
	file string // the file
	argv []string
}

// markers are the files that make a directory a project.
func markers() []string {
	return []string{"pyproject.toml", "setup.py", "requirements.txt", "package.json"}
}

// left out are directories that are of the host alone, or that installing makes anew.
func leftOut() []string {
	return []string{".git", ".hg", ".svn", "node_modules", "__pycache__", ".tox", ".mypy_cache", ".pytest_cache", ".installed"}
}

// ProjectHost is the host, as far as a plan needs to know it.
type ProjectHost struct {
	Root fs.FS  // its files
	Cwd  string // where relative paths begin
	Home string // of who asks: it is no project, and nothing above it is
}

func (h *ProjectHost) stat(p string) (fs.FileInfo, bool) {
	info, err := fs.Stat(h.Root, strings.TrimPrefix(path.Clean(p), "/"))
	return info, err == nil
}

func (h *ProjectHost) isFile(p string) bool {
	info, ok := h.stat(p)
	return ok && info.Mode().IsRegular()
}

func (h *ProjectHost) isDir(p string) bool {
	info, ok := h.stat(p)
	return ok && info.IsDir()
}

// below reports whether p is dir or in it, and what is left of it then.
func below(p, dir string) (rest string, ok bool) {
	if p == dir {
		return "", true
	}
	rest, ok = strings.CutPrefix(p, strings.TrimSuffix(dir, "/")+"/")
	return "/" + rest, ok
}

// system directories are in every box.
func system(p string) bool {
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"} {
		if _, ok := below(p, dir); ok {
			return true
		}
	}
	return false
}

// MakePlan finds out of what an MCP server on the host is made, so that it can run in a box: the directory that its command
// is about, what that needs to be installed, and what its paths are inside. What mounts have is as it is in the box: their targets are paths of the box, and
// a project below their sources is neither copied, nor is anything installed for it.
func MakePlan(h *ProjectHost, s *Server, mounts []api.Mount) *Plan {
	m := &planner{ProjectHost: h, server: s, mounts: mounts, base: h.Cwd}
	if s.Cwd != "" {
		m.base = m.absolute(s.Cwd)
	}
	p := &Plan{Server: *s}
	dir := m.findProject()
	for i := range mounts {
		if _, ok := below(dir, mounts[i].Source); ok && mounts[i].Source != "" {
			dir = ""
		}
	}
	m.dir = dir
	if dir != "" {
		m.collect(p)
	}
	m.rewrite(p)
	return p
}

type planner struct {
	*ProjectHost
	server *Server
	mounts []api.Mount
	base   string // where relative paths of the command begin
	dir    string // the project's; "": none is copied
	venvs  []string
}

func (m *planner) absolute(p string) string {
	if strings.HasPrefix(p, "/") {
		return path.Clean(p)
	}
	return path.Join(m.base, p)
}

// inside reports whether a path is one of the box already.
func (m *planner) inside(p string) bool {
	return system(p) || slices.ContainsFunc(m.mounts, func(t api.Mount) bool { _, ok := below(p, t.Target); return ok })
}

// findProject finds the directory of the project: what the server's entry says, then what an option of its runner says, then
// the nearest project around its program or script.
func (m *planner) findProject() string {
	if m.server.Cwd != "" && !m.inside(m.base) && m.isDir(m.base) && m.mayCopy(m.base) {
		return m.base
	}
	args := m.server.Args
	for i, arg := range args {
		for _, option := range []string{"--directory", "--project", "--prefix"} {
			value, ok := strings.CutPrefix(arg, option+"=")
			if arg == option && i+1 < len(args) {
				value, ok = args[i+1], true
			}
			if dir := m.absolute(value); ok && !m.inside(dir) && m.isDir(dir) && m.mayCopy(dir) {
				return dir
			}
		}
	}
	for _, word := range append([]string{m.server.Command}, args...) {
		if word == m.server.Command && !strings.Contains(word, "/") || strings.HasPrefix(word, "-") {
			continue
		}
		if file := m.absolute(word); !m.inside(file) && m.isFile(file) {
			if dir := m.projectOf(file, word == m.server.Command); dir != "" {
				return dir
			}
		}
	}
	return ""
}

// mayCopy reports whether a directory can be a project: home and what is above it have more than that, and so has one
// where every user may write, such as /tmp.
func (m *planner) mayCopy(dir string) bool {
	if _, above := below(m.Home, dir); dir == "/" || above {
		return false
	}
	info, ok := m.stat(dir)
	return ok && info.Mode().Perm()&0o002 == 0
}

// projectOf is the project that a file is in: the nearest directory with a marker, else the file's own, if it is no
// program that only lies there.
func (m *planner) projectOf(file string, program bool) string {
	start := path.Dir(file)
	if venv := m.venvOf(start); venv != "" {
		return map[bool]string{true: path.Dir(venv)}[m.mayCopy(path.Dir(venv))]
	}
	for dir := start; m.mayCopy(dir); dir = path.Dir(dir) {
		if slices.ContainsFunc(markers(), func(name string) bool { return m.isFile(path.Join(dir, name)) }) {
			return dir
		}
	}
	if program || !m.mayCopy(start) {
		return ""
	}
	return start
}

// venvOf is the virtual environment of Python around a directory.
func (m *planner) venvOf(dir string) string {
	for ; m.mayCopy(dir); dir = path.Dir(dir) {
		if m.isFile(path.Join(dir, "pyvenv.cfg")) {
			return dir
		}
	}
	return ""
}

// collect says what is copied and installed.
func (m *planner) collect(p *Plan) {
	p.dir = m.dir
	entries, _ := fs.ReadDir(m.Root, strings.TrimPrefix(m.dir, "/")) // one that cannot be read fails when it is copied
	has := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		switch {
		case slices.Contains(leftOut(), name):
			continue
		case m.isFile(path.Join(m.dir, name, "pyvenv.cfg")):
			m.venvs = append(m.venvs, path.Join(m.dir, name))
			continue
		}
		has[name] = true
		p.names = append(p.names, name)
	}
	npm := []string{"npm", "install", "--omit=dev", "--no-audit", "--no-fund"}
	if has["package-lock.json"] {
		npm[1] = "ci"
	}
	pip := []string{"python3", "-m", "pip", "install", "--user", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"}
	if has["requirements.txt"] {
		p.installs = append(p.installs, install{"requirements.txt", append(slices.Clone(pip), "-r", "requirements.txt")})
	}
	for _, file := range []string{"pyproject.toml", "setup.py"} { // the first of them says all about the directory
		if has[file] {
			p.installs = append(p.installs, install{file, append(slices.Clone(pip), ".")})
			break
		}
	}
	if has["package.json"] {
		p.installs = append(p.installs, install{"package.json", npm})
	}
}

// rewrite gives the server the paths of the box.
func (m *planner) rewrite(p *Plan) {
	s := &p.Server
	s.Command = m.program(m.server.Command)
	s.Args = slices.Clone(m.server.Args)
	for i, arg := range s.Args {
		s.Args[i] = m.argument(arg)
	}
	s.Env = maps.Clone(m.server.Env)
	for name, value := range s.Env {
		s.Env[name] = m.text(value)
	}
	if s.Cwd != "" {
		s.Cwd = m.text(m.base)
	}
	if p.dir == "" {
		return
	}
	if s.Cwd == "" {
		s.Cwd = projectDir
	}
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	setDefault(s.Env, "PYTHONUSERBASE", installDir)
	setDefault(s.Env, "PATH", installDir+"/bin:"+projectDir+"/node_modules/.bin:/home/box/.local/bin:/usr/local/bin:/usr/bin:/bin")
}

func setDefault(env map[string]string, name, value string) {
	if _, ok := env[name]; !ok {
		env[name] = value
	}
}

// program is the command: one of a virtual environment is that of the box, and so is an interpreter that the host has
// somewhere of its own.
func (m *planner) program(command string) string {
	if !strings.Contains(command, "/") {
		return command
	}
	abs := m.absolute(command)
	name := path.Base(abs)
	interpreter := slices.ContainsFunc([]string{"python", "node", "npx", "npm", "uv", "uvx", "bun", "deno"}, func(known string) bool {
		return strings.TrimRight(name, "0123456789.") == known
	})
	switch venv := m.venvOf(path.Dir(abs)); {
	case m.inside(abs):
		return command
	case venv != "" && strings.HasPrefix(name, "python"):
		return "python3"
	case venv != "":
		return installDir + "/bin/" + name
	}
	if moved := m.text(abs); moved != abs {
		return moved
	}
	if interpreter {
		return name
	}
	return command
}

// argument is one word: a relative path of a file that is copied becomes that of the copy.
func (m *planner) argument(arg string) string {
	if option, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "-") {
		return option + "=" + m.text(value)
	}
	if abs := m.absolute(arg); arg != "" && !strings.HasPrefix(arg, "/") && !strings.HasPrefix(arg, "-") && m.base != m.dir && m.isFile(abs) {
		if moved := m.text(abs); moved != abs {
			return moved
		}
	}
	return m.text(arg)
}

// text is a path of the host as it is in the box; anything else is what it is.
func (m *planner) text(text string) string {
	if !strings.HasPrefix(text, "/") || m.inside(text) {
		return text
	}
	for _, venv := range m.venvs {
		if rest, ok := below(text, venv); ok {
			return installDir + rest
		}
	}
	if rest, ok := below(text, m.dir); ok && m.dir != "" {
		return projectDir + rest
	}
	for i := range m.mounts {
		if rest, ok := below(text, m.mounts[i].Source); ok && m.mounts[i].Source != "" {
			return m.mounts[i].Target + rest
		}
	}
	return text
}
