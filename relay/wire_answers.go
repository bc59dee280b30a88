// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/base64"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"

	"github.com/boxd-dev/boxd/supervisor/driver"
)

// stateFrozen is shown instead of ready.
const stateFrozen = "frozen"

// stateUnhealthy is shown instead of ready if PID 1 of the box does not answer.
const stateUnhealthy = "unhealthy"

// sessionAnswer describes a session.
func sessionAnswer(i session.Info) api.Session {
	s := api.Session{
		ID: i.ID, Owner: i.Owner, OwnerUID: i.OwnerUID, State: string(i.State), Hostname: i.Hostname,
		Profile: i.Settings.Profile, Image: i.Settings.Image, Network: i.Settings.Network, NetworkRules: i.Settings.NetworkRules, NetworkStrict: i.Settings.NetworkStrict, NetworkConnections: i.Settings.NetworkConnections, NetworkBandwidth: i.Settings.NetworkBandwidth, Secrets: i.Settings.Secrets, Push: i.Settings.Push, ReadOnlyRoot: i.Settings.ReadOnlyRoot, HomeOnDisk: i.Settings.HomeOnDisk, UserName: i.Settings.UserName(), Home: i.Settings.HomeDir(),
		Limits: i.Settings.Limits, Lifetime: i.Settings.Lifetime,
		WorkspaceName: i.Settings.Workspace, Mounts: []api.Mount{}, Env: append([]string{}, i.Settings.EnvNames...), Labels: i.Settings.Labels, Metadata: i.Settings.Metadata, Enforcement: enforcedAnswer(i.Enforced),
		Clamped: clampsAnswer(i.Settings.Clamped), CreatedAt: i.Created, LastUsedAt: i.LastUsed, Running: i.Running, Executions: i.Executions, PID: i.PID, IDBase: i.IDBase, Group: i.Group,
	}
	if i.MissedPings >= session.Unhealthy && i.State == session.StateReady {
		s.State = stateUnhealthy
	}
	if i.Frozen && i.State == session.StateReady {
		s.State = stateFrozen
	}
	s.Inputs, s.Mounts = appendInputs(s.Inputs, i.Settings.Inputs), appendMounts(s.Mounts, i.Settings.Mounts)
	for _, k := range i.Skills {
		s.Skills = append(s.Skills, skillAnswer(&k))
	}
	for _, k := range i.Drives {
		if !k.Gone {
			s.Drives = append(s.Drives, driveAnswer(&k))
		}
	}
	if !i.Stopped.IsZero() {
		s.StoppedAt = &i.Stopped
	}
	if !i.Expires.IsZero() {
		s.ExpiresAt = &i.Expires
	}
	return s
}

func appendInputs(list []api.Input, inputs []policy.Input) []api.Input {
	for _, in := range inputs {
		to := api.Input{Workspace: in.Workspace}
		to.Target, to.TargetBase64 = nameAnswer([]byte(in.Target))
		list = append(list, to)
	}
	return list
}

func appendMounts(list []api.Mount, mounts []policy.Mount) []api.Mount {
	for _, m := range mounts {
		to := api.Mount{Mode: m.Mode, Owner: m.Owner, NoSymlinks: m.NoSymlinks}
		to.Source, to.SourceBase64 = nameAnswer([]byte(m.Source))
		to.Target, to.TargetBase64 = nameAnswer([]byte(m.Target))
		list = append(list, to)
	}
	return list
}

// pushedAnswer describes the pushed results of a session.
func pushedAnswer(c *Call, s *session.Session) *api.Pushed {
	st := c.Sup.PushState(s)
	return &api.Pushed{Waiting: st.Waiting, Done: st.Done, GivenUp: st.GivenUp, Error: st.Error}
}

// skillAnswer describes a skill of a session.
func skillAnswer(k *policy.ActiveSkill) api.SessionSkill {
	w := api.SessionSkill{Name: k.Name, Digest: k.Digest, Since: k.Since.UTC(), Attributes: k.Attrs, Missing: k.Missing}
	if !k.Missing {
		w.Target = supervisor.SkillTarget(k.Name)
	}
	return w
}

// driveAnswer describes a drive of a session.
func driveAnswer(k *policy.ActiveDrive) api.SessionDrive {
	return api.SessionDrive{
		Name: k.Name, Target: supervisor.DriveTarget(k.Name), Version: k.Version, Digest: k.Digest, Since: k.Since.UTC(), Attributes: k.Attrs, Earlier: len(k.Earlier),
	}
}

// enforcedAnswer returns what enforces each limit.
func enforcedAnswer(by map[string]policy.Mechanism) map[string]string {
	texts := make(map[string]string, len(by))
	for limit, mechanism := range by {
		texts[limit] = string(mechanism)
	}
	return texts
}

// execAnswer describes the result of an execution in a session.
func execAnswer(id string, r *session.Result, encoding string) api.ExecResult {
	res := api.ExecResult{
		Session: id, Status: string(r.Status), Signal: r.Signal, PID: r.PID,
		DurationMS: inMilliseconds(r.Duration), Timeout: quantity.Duration(r.Timeout), LeftoversKilled: r.Leftovers,
		Usage:   api.Usage{UserMS: inMilliseconds(r.UserTime), SystemMS: inMilliseconds(r.SysTime), MaxRSS: r.MaxRSS},
		Clamped: clampsAnswer(r.Clamped),
	}
	if r.Grouped {
		res.Usage.MemoryPeak, res.Usage.PidsPeak, res.Usage.Read, res.Usage.Written = r.MemoryPeak, r.PidsPeak, r.Read, r.Written
	}
	if o := r.OOM; o != nil {
		res.OOM = &api.OOM{Kills: o.Kills, Limit: o.Limit, Of: "session", Peak: r.MemoryPeak, Names: o.Victims}
		switch {
		case o.Sign != "":
			res.OOM.Of, res.OOM.Sign = "process", o.Sign
		case o.Own:
			res.OOM.Of = "execution"
		case o.Shared:
			res.OOM.Of = "owner"
		}
	}
	for _, f := range r.Full {
		res.Quota = append(res.Quota, api.Quota{Kind: f.Kind, Used: f.Used, Limit: f.Limit, Files: f.Files, FilesLimit: f.FilesLimit, Hit: true})
	}
	if r.Status == session.StatusExited {
		res.ExitCode = &r.ExitCode
	}
	if r.Failed != nil {
		res.Failure = startFailure(r.Failed)
	}
	for i, text := range []*string{&res.Stdout, &res.Stderr} {
		res.Output[i] = api.Total{Bytes: r.Streams[i].Total, Omitted: r.Streams[i].Omitted}
		*text = encode(r.Streams[i].Data, encoding)
	}
	return res
}

// encode encodes output for a response. Text is not copied, so data must not change afterwards.
func encode(data []byte, encoding string) string {
	switch {
	case encoding == encodingBase64:
		return base64.StdEncoding.EncodeToString(data)
	case utf8.Valid(data):
		return unsafe.String(unsafe.SliceData(data), len(data))
	}
	return strings.ToValidUTF8(string(data), "�")
}

// clampsAnswer lists the limits that were set lower than requested.
func clampsAnswer(list []policy.Clamp) []api.Clamp {
	var out []api.Clamp
	for _, c := range list {
		out = append(out, api.Clamp(c))
	}
	return out
}

// inMilliseconds converts a duration for a response.
func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// trafficAnswer describes the traffic of a network.
func trafficAnswer(u *driver.TrafficUse) *api.Traffic {
	t := &api.Traffic{
		Addresses: []string{}, Received: quantity.Size(u.Received.Bytes), ReceivedPackets: u.Received.Packets,
		Sent: quantity.Size(u.Sent.Bytes), SentPackets: u.Sent.Packets, DeniedPackets: u.PacketsRejected,
	}
	for _, a := range u.Addresses {
		t.Addresses = append(t.Addresses, a.String())
	}
	return t
}
