// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Share of the kept output that is its beginning; the rest is its end.
const headShare = 0.6

// followWindow is how far a program may be ahead of who follows its output before it waits.
const followWindow = quantity.MiB

// command turns a request into what PID 1 is told, and the script that goes with it.
func (v *Supervisor) command(s *Session, req *ExecRequest, managed bool) (*isolation.Command, []byte, []policy.Clamp, error) {
	if err := v.validateExec(req); err != nil {
		return nil, nil, nil, err
	}
	settings := s.settings()
	timeout, clamped, err := s.timeout(settings.Profile, req.Timeout, managed)
	if err != nil {
		return nil, nil, nil, err
	}
	cmd := &isolation.Command{
		Env: withEnv(s.env, req.Env), Dir: req.Dir, ScriptArg: -1, Timeout: timeout,
		KeepRunning: s.profile.Leftovers == policy.LeftoversKeep,
		Output:      isolation.Output{Tail: uint64(followWindow)}, Durable: req.Follow || req.StdinPipe,
	}
	if cmd.Dir == "" {
		cmd.Dir = isolation.Workspace
	}
	if !req.Follow {
		limit := v.cfg.Exec.OutputLimit
		if req.OutputLimit != nil {
			limit = *req.OutputLimit
		}
		cmd.Output.Head = uint64(float64(limit) * headShare)
		cmd.Output.Tail = uint64(limit) - cmd.Output.Head
	}
	switch {
	case req.StdinPipe:
		cmd.Stdin = isolation.StdinPipe
	case len(req.Stdin) > 0:
		cmd.Stdin = isolation.StdinFile
	}
	if cmd.Limits, err = req.Limits.Groups(&settings, s.enforced); err != nil {
		return nil, nil, nil, err
	}
	script := v.argv(cmd, req)
	return cmd, script, clamped, nil
}

// argv sets the arguments. It returns the code if that is too long to be one of them.
func (v *Supervisor) argv(cmd *isolation.Command, req *ExecRequest) []byte {
	if req.Argv != nil {
		cmd.Argv = req.Argv
		return nil
	}
	code, lang := req.Code, v.cfg.Languages[req.Language]
	if req.Command != nil {
		code, lang = req.Command, v.cfg.Languages["sh"]
	}
	cmd.Argv, cmd.ScriptArg = lang.Command(*code)
	if cmd.ScriptArg < 0 {
		return nil
	}
	cmd.ScriptSuffix = lang.Suffix
	return []byte(*code)
}

// CheckExec reports what is wrong with a request, before a session is made for it of the profile, which
// Create judges.
func (v *Supervisor) CheckExec(profile string, req *ExecRequest) error {
	if err := v.validateExec(req); err != nil {
		return err
	}
	profile = cmp.Or(profile, v.cfg.Sessions.DefaultProfile)
	p, ok := v.cfg.Profiles[profile]
	if !ok {
		return nil
	}
	_, _, err := p.ExecTimeout(profile, req.Timeout)
	return err
}

func (v *Supervisor) validateExec(req *ExecRequest) error {
	given := 0
	for _, is := range []bool{req.Argv != nil, req.Command != nil, req.Code != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return fault.Errorf(fault.Invalid, "%d of argv, command and code are given, not one", given).
			WithHint("argv is a program with its arguments, command a line for the shell, code a text in language")
	case req.Argv != nil:
		if err := v.validateArgv(req.Argv); err != nil {
			return err
		}
	case req.Command != nil:
		if err := v.validateCode("command", *req.Command); err != nil {
			return err
		}
	default:
		if _, ok := v.cfg.Languages[req.Language]; !ok {
			return fault.Field("language", req.Language, strings.Join(slices.Sorted(maps.Keys(v.cfg.Languages)), ", "))
		}
		if err := v.validateCode("code", *req.Code); err != nil {
			return err
		}
	}
	if req.Code == nil && req.Language != "" {
		return fault.Field("language", req.Language, "nothing without code")
	}
	if req.Dir != "" && (!isolation.CleanAbsolute(req.Dir) || !isolation.UnderRoots(req.Dir)) {
		return fault.Field("cwd", req.Dir, "a clean absolute path at or below one of "+strings.Join(isolation.Roots(), ", "))
	}
	if size := quantity.Size(len(req.Stdin)); size > v.cfg.Exec.MaxStdin {
		return fault.Field("stdin", size, fmt.Sprintf("at most %v (exec.max_stdin); stream it instead", v.cfg.Exec.MaxStdin))
	}
	if l := req.OutputLimit; l != nil && (*l < 1 || *l > v.cfg.Exec.OutputLimit) {
		return fault.Field("output_limit", *l, fmt.Sprintf("1B to %v (exec.output_limit)", v.cfg.Exec.OutputLimit))
	}
	return policy.ValidateEnvironment(req.Env)
}

func (v *Supervisor) validateArgv(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return fault.Field("argv", "", "a program and its arguments")
	}
	var size quantity.Size
	for i, arg := range argv {
		field := fmt.Sprintf("argv[%d]", i)
		if strings.Contains(arg, "\x00") {
			return fault.Field(field, arg, "text without NUL")
		}
		if len(arg) > policy.MaxArg {
			return fault.Field(field, quantity.Size(len(arg)), fmt.Sprintf("at most %d bytes, by the kernel", policy.MaxArg)).
				WithHint("a command, code or stdin may be longer")
		}
		size += quantity.Size(len(arg) + 1)
	}
	if size > v.cfg.Exec.MaxCommand {
		return fault.Field("argv", size, fmt.Sprintf("at most %v (exec.max_command)", v.cfg.Exec.MaxCommand))
	}
	return nil
}

func (v *Supervisor) validateCode(field, code string) error {
	switch {
	case strings.TrimSpace(code) == "":
		return fault.Field(field, code, "something to run")
	case strings.Contains(code, "\x00"):
		return fault.Field(field, code, "text without NUL")
	case quantity.Size(len(code)) > v.cfg.Exec.MaxCommand:
		return fault.Field(field, quantity.Size(len(code)), fmt.Sprintf("at most %v (exec.max_command)", v.cfg.Exec.MaxCommand)).
			WithHint("put it into a file of the workspace, or send it by stdin")
	}
	return nil
}

// environment is the configured one with a session's on top.
func (v *Supervisor) environment(env map[string]string) []string {
	all := maps.Clone(v.cfg.Env)
	maps.Copy(all, env)
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// withEnv is a session's environment with an execution's on top.
func withEnv(base []string, env map[string]string) []string {
	if len(env) == 0 {
		return base
	}
	list := make([]string, 0, len(base)+len(env))
	for _, kv := range base {
		name, _, _ := strings.Cut(kv, "=")
		if _, replaced := env[name]; !replaced {
			list = append(list, kv)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// execFiles are the memory files that travel with a command.
type execFiles struct{ client.Files }

func openFiles(script []byte, req *ExecRequest) (execFiles, error) {
	var f execFiles
	var err error
	if script != nil {
		if f.Script, err = memoryFile("script", script); err != nil {
			return f, err
		}
	}
	if len(req.Stdin) > 0 && !req.StdinPipe {
		if f.Stdin, err = memoryFile("stdin", req.Stdin); err != nil {
			f.close()
			return f, err
		}
	}
	return f, nil
}

func memoryFile(name string, data []byte) (*os.File, error) {
	fd, err := fdpass.BytesFile(name, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (f *execFiles) close() {
	for _, file := range []*os.File{f.Script, f.Stdin} {
		if file != nil {
			file.Close()
		}
	}
}
