// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/volumes"
)

// getDefinition returns what another session like this one is made from.
func getDefinition(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	select {
	case <-s.Started():
	case <-c.Context().Done():
		return nil, c.Context().Err()
	}
	with, err := queryFlag(c.R.URL.Query(), "with_workspace")
	if err != nil {
		return nil, err
	}
	list, err := c.Sup.Snapshots(c.Context(), s)
	if err != nil {
		return nil, err
	}
	var lent *volumes.Workspace
	if settings := s.Current(); with && settings.Workspace != "" {
		w, err := c.Sup.Spaces.Get(s.Owner.Name, settings.Workspace)
		if err != nil {
			return nil, err
		}
		lent = &w
	}
	d, err := definitionOf(s, lent, time.Now())
	if err != nil {
		return nil, err
	}
	if len(list) > 0 {
		d.LeftOut = append(d.LeftOut, fmt.Sprintf("snapshots: %d", len(list)))
	}
	return d, nil
}

// definitionOf is getDefinition without what only the keeper knows. lent is the named workspace that is to be the new session's own; nil: it
// has the same one, if it has any.
func definitionOf(s *session.Session, lent *volumes.Workspace, now time.Time) (*api.SessionDefinition, error) {
	info, again := s.Info(), s.ToHaveAgain()
	settings := &info.Settings
	d := &api.SessionDefinition{Processes: map[string]json.RawMessage{}, Paths: []string{}, LeftOut: []string{}}
	req := sessionRequestFrom(settings.Request())
	req.ID, req.Secrets, req.Push = info.ID, settings.Secrets, settings.Push
	if settings.Root != nil {
		d.ImageDigest = settings.Root.Digest
	}
	if settings.Network == policy.NetworkEgress {
		req.NetworkConnections, req.NetworkBandwidth = &settings.NetworkConnections, &settings.NetworkBandwidth
	}
	if life := time.Duration(settings.MaxLifetime); life > 0 {
		until := now
		if info.State == session.StateStopped {
			until = info.Stopped
		}
		req.MaxLifetime = new(quantity.Duration(max(life-until.Sub(info.Created.Add(s.Rested())), time.Second).Truncate(time.Second)))
	}
	req.Env, req.Base64 = environmentOf(s.Environment(), settings.EnvNames)
	req.Mounts = append(req.Mounts, requestMounts(again.Mounts)...)
	req.Skills = []string{} // also none where its profile has some
	for _, k := range info.Skills {
		if k.Of != "" {
			d.LeftOut = append(d.LeftOut, "the skill "+k.Name+", which belongs to somebody else")
			continue
		}
		req.Skills = append(req.Skills, k.Name)
	}
	for _, k := range info.Drives {
		if !k.Gone {
			req.Drives = append(req.Drives, fmt.Sprintf("%s@%d", k.Name, k.Version))
		}
	}
	if lent != nil {
		ownWorkspace(&req, lent)
	}
	if settings.ManagedWork() && (settings.Workspace == "" || lent != nil) {
		d.Paths = append(d.Paths, isolation.Workspace)
	}
	if settings.HomeOnDisk {
		d.Paths = append(d.Paths, settings.HomeDir())
	}
	if !settings.ReadOnlyRoot {
		d.LeftOut = append(d.LeftOut, "changes to the root filesystem")
	}
	if n := len(s.Pushes()); n > 0 {
		d.LeftOut = append(d.LeftOut, fmt.Sprintf("results that are still to be pushed: %d", n))
	}
	var err error
	if d.Session, err = json.Marshal(&req); err != nil {
		return nil, err
	}
	for _, spec := range again.Processes {
		p, ok := processRequestFrom(spec, s.Config().Languages)
		if !ok {
			d.LeftOut = append(d.LeftOut, fmt.Sprintf("the process %q, which runs code in a language that is not configured any more", spec.ID))
			continue
		}
		if d.Processes[spec.ID], err = json.Marshal(&p); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// ownWorkspace has a session have a workspace of its own instead of one that is lent to it, with room for the same.
func ownWorkspace(req *api.SessionRequest, lent *volumes.Workspace) {
	size, files := lent.Quota, lent.Inodes
	if beside := req.WorkspaceQuota; beside != nil { // of its home, or of changes to its root
		size, files = both(size, *beside), both(files, *cmp.Or(req.WorkspaceInodes, &files))
	}
	req.Workspace, req.WorkspaceQuota, req.WorkspaceInodes = "", &size, nil
	if size > 0 {
		req.WorkspaceInodes = &files
	}
}

// both is what two limits allow together; 0 is none.
func both[T quantity.Size | int](a, b T) T {
	if a == 0 || b == 0 {
		return 0
	}
	return a + b
}

// sessionRequestFrom is the opposite of sessionRequestOf, for what settings have.
func sessionRequestFrom(r *policy.Request) api.SessionRequest {
	return api.SessionRequest{
		Profile: r.Profile, Image: r.Image, Network: r.Network, NetworkRules: r.NetworkRules, NetworkStrict: r.NetworkStrict, ReadOnlyRoot: r.ReadOnlyRoot, HomeOnDisk: r.HomeOnDisk,
		UserName: r.User, Home: r.Home, Patch: r.Patch, Rlimits: r.Rlimits, Tmp: r.Tmp, Workspace: r.Workspace, Labels: r.Labels, Metadata: r.Metadata,
		Inputs: requestInputs(r.Inputs), Mounts: requestMounts(r.Mounts),
	}
}

// requestMounts returns mounts for a request, which has a path in one form only.
func requestMounts(mounts []policy.Mount) []api.Mount {
	list := appendMounts(nil, mounts)
	for i := range list {
		if m := &list[i]; m.SourceBase64 != "" {
			m.Source = ""
		}
		if m := &list[i]; m.TargetBase64 != "" {
			m.Target = ""
		}
	}
	return list
}

func requestInputs(inputs []policy.Input) []api.Input {
	list := appendInputs(nil, inputs)
	for i := range list {
		if list[i].TargetBase64 != "" {
			list[i].Target = ""
		}
	}
	return list
}

// environmentOf picks variables of an environment by name: those that are text, and the others in base64.
func environmentOf(env, names []string) (texts map[string]string, others *api.InBase64) {
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		switch {
		case !slices.Contains(names, name):
		case utf8.ValidString(variable):
			if texts == nil {
				texts = map[string]string{}
			}
			texts[name] = value
		default:
			if others == nil {
				others = &api.InBase64{}
			}
			others.Env = append(others.Env, base64.StdEncoding.EncodeToString([]byte(variable)))
		}
	}
	return texts, others
}

// processRequestFrom is the opposite of processRequestOf. It fails for code in a language that is not configured any more.
func processRequestFrom(spec *process.Spec, languages map[string]policy.Language) (r api.ProcessRequest, ok bool) {
	cmd := &spec.Command
	r = api.ProcessRequest{
		Cwd: cmd.Dir, CwdMustExist: cmd.Existing, Terminal: (*api.Terminal)(cmd.Terminal), Stdin: cmd.Stdin == isolation.StdinPipe && cmd.Terminal == nil, MergeOutput: cmd.Merged,
		Restart: &api.Restart{
			Policy: spec.Restart.Policy, Delay: duration(spec.Restart.Delay), MaxDelay: duration(spec.Restart.MaxDelay), Limit: spec.Restart.Limit, Window: duration(spec.Restart.Window),
		},
		Stop: &api.Stop{Signal: spec.Stop.Signal, Grace: duration(spec.Stop.Grace)}, Lease: duration(spec.Lease), Labels: spec.Labels, Rlimits: spec.Rlimits,
	}
	if cmd.Root {
		r.User = session.RootUser
	}
	if x := spec.Ready; x != nil {
		r.Ready = &api.Ready{Line: x.Line, Port: x.Port, Command: x.Command, Timeout: duration(x.Timeout)}
	}
	if cmd.Timeout > 0 {
		r.Timeout = duration(&cmd.Timeout)
	}
	if limit := quantity.Size(cmd.Output.Head + cmd.Output.Tail); cmd.Spool {
		r.Spool = &limit
	} else {
		r.Output = &limit
	}
	if l := &cmd.Limits; l.CPU > 0 {
		r.CPUs = new(float64(l.CPU) / cgroup.CPUPeriod)
	}
	if l := &cmd.Limits; l.Memory > 0 {
		r.Memory = new(quantity.Size(l.Memory))
	}
	if l := &cmd.Limits; l.Pids > 0 {
		r.Pids = new(int(l.Pids))
	}
	r.Env, r.Base64 = environmentOf(cmd.Env, spec.EnvNames)
	inBytes := func() *api.InBase64 {
		if r.Base64 == nil {
			r.Base64 = &api.InBase64{}
		}
		return r.Base64
	}
	if !utf8.ValidString(r.Cwd) {
		inBytes().Cwd, r.Cwd = base64.StdEncoding.EncodeToString([]byte(r.Cwd)), ""
	}
	if cmd.ScriptArg >= 0 {
		return r, codeOf(&r, spec, languages, inBytes)
	}
	r.Argv = isolation.LimitedProgram(cmd.Argv)
	if slices.ContainsFunc(r.Argv, func(arg string) bool { return !utf8.ValidString(arg) }) {
		for _, arg := range r.Argv {
			inBytes().Argv = append(inBytes().Argv, base64.StdEncoding.EncodeToString([]byte(arg)))
		}
		r.Argv = nil
	}
	return r, true
}

// codeOf sets the code of a process whose program is too long for an argument, and its language.
func codeOf(r *api.ProcessRequest, spec *process.Spec, languages map[string]policy.Language, inBytes func() *api.InBase64) bool {
	argv := isolation.LimitedProgram(spec.Command.Argv)
	for _, name := range slices.Sorted(maps.Keys(languages)) {
		if l := languages[name]; !slices.Equal(l.File, argv) {
			continue
		}
		r.Language = name
		if code := string(spec.Script); utf8.ValidString(code) {
			r.Code = &code
		} else {
			inBytes().Code = new(base64.StdEncoding.EncodeToString(spec.Script))
		}
		return true
	}
	return false
}
