// SPDX-License-Identifier: Apache-2.0

// Python virtual environments for the skills of a session. They are created inside its box, as the box user, in its workspace,
// where every session with the same workspace finds them. See docs/design/skills.md.

package sessionfiles

import (
	"bytes"
	"context"
	_ "embed" // for environment.py
	"encoding/json"
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

//go:embed environment.py
var program string

// EnvironmentRequest is a request for an environment.
type EnvironmentRequest struct {
	Env     map[string]string  // for pip, besides that of the session; PIP_INDEX_URL says where packages come from
	Timeout *quantity.Duration // nil: the maximum that the profile allows
}

// Environment is an existing environment, as reported by the box.
type Environment struct {
	Path   string `json:"path"`   // in the box; bin/python is below it
	Python string `json:"python"` // its version
	Made   bool   `json:"made"`   // now; otherwise it existed
}

// Limits of the program's output.
const (
	maxAnswer = 8 << 10
	lastWords = 2 << 10 // of its stderr, in an error
)

// pipInstalls says how pip installs a directory that has one of the files, in this order, and the options of every "pip
// install" without a user at a terminal. Of the files that install "." only the first found counts.
const pipInstalls = `{"installs":[{"file":"requirements.txt","args":["-r","requirements.txt"]},{"file":"pyproject.toml","args":["."]},` +
	`{"file":"setup.py","args":["."]}],"options":["--no-input","--disable-pip-version-check","--no-warn-script-location"]}`

// MakeEnvironment creates the environment of an active skill of a session, unless the workspace has it. Of several callers at
// the same time one creates it, and the others wait.
func MakeEnvironment(ctx context.Context, s *session.Session, skill string, req *EnvironmentRequest) (*Environment, error) {
	i := slices.IndexFunc(s.Skills(), func(k policy.ActiveSkill) bool { return k.Name == skill && !k.Missing })
	if i < 0 {
		f := fault.Errorf(fault.NotFound, "skill %s is not active in session %s", fault.Show(skill), fault.Show(s.ID)).WithHint("activate it first: boxctl skills activate BOX %s", skill)
		f.Field, f.Value = "skill", skill
		return nil, f
	}
	settings := s.Current()
	timeout := req.Timeout
	if p := s.Config().Profiles[settings.Profile]; timeout == nil && !slices.Contains(p.Locked, "timeout") {
		if timeout = &p.MaxTimeout; s.Config().PolicyOf(s.Owner).Ceilings.Timeout > 0 {
			timeout = new(min(p.MaxTimeout, s.Config().PolicyOf(s.Owner).Ceilings.Timeout))
		}
	}
	limit := min(quantity.Size(maxAnswer), s.Config().Exec.OutputLimit)
	r, err := s.Exec(ctx, &session.ExecRequest{
		Argv: []string{"python3", "-I", "-c", program, path.Join(isolation.SkillsDir, skill), isolation.Workspace, pipInstalls},
		Env:  req.Env, Dir: isolation.Workspace, Timeout: timeout, OutputLimit: &limit,
	})
	if err != nil {
		return nil, err
	}
	if r.Status == session.StatusCanceled {
		return nil, s.Canceled()
	}
	if err := failure(s.ID, skill, settings.Network, r); err != nil {
		return nil, err
	}
	return parse(r.Streams[0].Data)
}

// Exit codes that the program uses itself.
const (
	codeNothing = 81 + iota
	codeNoVenv
	codeNoPip
	codeFailed
	codeNoRoom
)

// failure is why there is no environment, nil if there is one.
func failure(id, skill, network string, r *session.Result) error {
	stderr := words(r.Streams[1].Data)
	switch r.Status {
	case session.StatusTimedOut:
		return fault.Errorf(fault.Exhausted, "creating the environment of skill %s took longer than %v", fault.Show(skill), r.Timeout).WithHint("try again with a longer timeout")
	case session.StatusOOMKilled:
		return fault.Errorf(fault.Exhausted, "not enough memory in the session for the environment of skill %s", fault.Show(skill)).WithHint("raise its limit: boxctl set BOX --memory SIZE")
	case session.StatusCanceled:
		return context.Canceled
	case session.StatusLost:
		return session.NotFoundError(id)
	case session.StatusStartFailed:
		if errors.Is(r.Failed, unix.ENOENT) {
			return fault.Errorf(fault.Unsupported, "there is no python3 in the box").WithHint("use an image that has python3")
		}
		return fault.Errorf(fault.Unavailable, "cannot start python3: %w", r.Failed).WithHint("the session may be at its limit of processes or memory: boxctl inspect BOX")
	case session.StatusExited, session.StatusSignaled:
	}
	if r.Status == session.StatusExited && r.ExitCode == 0 {
		return nil
	}
	f := fault.Errorf(fault.Conflict, "cannot create the environment of skill %s: %s", fault.Show(skill), stderr)
	f.Field, f.Value = "skill", skill
	switch r.ExitCode {
	case codeNothing:
		return f.WithHint("this skill needs no environment")
	case codeNoVenv, codeNoPip:
		return f.Of(fault.Unsupported).WithHint("install python3-pip or python3-venv in the image of the session (for the image \"host\": on the host)")
	case codeNoRoom:
		return f.WithHint("free space in the workspace (or in the home directory, if the workspace is read-only)")
	}
	if network == policy.NetworkOff {
		return f.WithHint("create the session with network = \"egress\", or put the packages into the skill and set PIP_NO_INDEX and PIP_FIND_LINKS")
	}
	return f.WithHint("pip reads PIP_INDEX_URL and its other variables from env")
}

// words returns the end of a program's stderr as text without control characters.
func words(stderr []byte) string {
	if len(stderr) > lastWords {
		stderr = stderr[len(stderr)-lastWords:]
	}
	text := strings.Map(func(c rune) rune {
		if c != '\n' && unicode.IsControl(c) {
			return utf8.RuneError
		}
		return c
	}, strings.ToValidUTF8(string(stderr), "\uFFFD"))
	if text = strings.TrimSpace(text); text == "" {
		return "it gave no reason"
	}
	return text
}

// parse reads the program's output. As it comes from the box it is not trusted, and only passed on.
func parse(stdout []byte) (*Environment, error) {
	lines := bytes.Split(bytes.TrimSpace(stdout), []byte("\n"))
	e := &Environment{}
	err := json.Unmarshal(lines[len(lines)-1], e)
	version := regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,5}){2}$`)
	plain := utf8.ValidString(e.Path) && !strings.ContainsFunc(e.Path, unicode.IsControl)
	switch {
	case err != nil:
		return nil, fault.Errorf(fault.Conflict, "the box gave an invalid answer about the environment: %w", err).WithHint("a program in the session may have changed its python3")
	case !plain || !path.IsAbs(e.Path) || path.Clean(e.Path) != e.Path || len(e.Path) >= unix.PathMax || !version.MatchString(e.Python):
		return nil, fault.Errorf(fault.Conflict, "the box gave an invalid answer about the environment").WithHint("a program in the session may have changed its python3")
	}
	return e, nil
}
