// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/base64"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// Encodings of input and output in JSON.
const (
	encodingUTF8   = "utf-8"
	encodingBase64 = "base64"
)

// sessionRequestOf converts a request for a session.
func sessionRequestOf(r *api.SessionRequest) *policy.Request {
	req := &policy.Request{
		ID: r.ID, Template: r.Template, Variables: r.Variables, Profile: r.Profile, Image: r.Image, Network: r.Network, NetworkRules: r.NetworkRules, NetworkStrict: r.NetworkStrict,
		Patch: r.Patch, Secrets: r.Secrets, Push: r.Push, ReadOnlyRoot: r.ReadOnlyRoot, HomeOnDisk: r.HomeOnDisk, User: r.UserName, Home: r.Home, Rlimits: r.Rlimits, Tmp: r.Tmp,
		Workspace: r.Workspace, Skills: r.Skills, Drives: r.Drives, Env: r.Env, Labels: r.Labels, Metadata: r.Metadata, Wait: r.Wait,
	}
	for _, in := range r.Inputs {
		req.Inputs = append(req.Inputs, policy.Input{Workspace: in.Workspace, Target: in.Target})
	}
	for _, m := range r.Mounts {
		req.Mounts = append(req.Mounts, policy.Mount{Source: m.Source, Target: m.Target, Mode: m.Mode, Owner: m.Owner, NoSymlinks: m.NoSymlinks})
	}
	return req
}

// execRequestOf converts a request for an execution.
func execRequestOf(r *api.ExecRequest) (*session.ExecRequest, error) {
	if r.DryRun {
		return nil, fault.Field("dry_run", "true", "false in a stream")
	}
	for _, f := range [...]struct{ name, value string }{{"encoding", r.Encoding}, {"stdin_encoding", r.StdinEncoding}} {
		if f.value != "" && f.value != encodingUTF8 && f.value != encodingBase64 {
			return nil, fault.Field(f.name, f.value, encodingUTF8+", "+encodingBase64)
		}
	}
	env, err := sessionfiles.OutputEnvironment(r.OutputVersion, r.Env)
	if err != nil {
		return nil, err
	}
	if r.Spool != nil && r.ID == "" {
		return nil, fault.Field("spool", *r.Spool, "left out without an id, by which the output is read")
	}
	req := &session.ExecRequest{
		Argv: r.Argv, Command: r.Command, Code: r.Code, Language: r.Language, Env: env, Dir: sessionfiles.WorkingDirectory(r.Cwd, r.OutputVersion), Existing: r.CwdMustExist,
		Stdin: []byte(r.Stdin), Timeout: r.Timeout, OutputLimit: r.OutputLimit, Wait: (*time.Duration)(r.Wait),
		Limits: policy.ProgramLimits{CPUs: r.CPUs, Memory: r.Memory, Pids: r.Pids}, Rlimits: r.Rlimits, MergeOutput: r.MergeOutput, Spool: r.Spool, User: r.User,
	}
	if r.StdinEncoding == encodingBase64 {
		if req.Stdin, err = base64.StdEncoding.DecodeString(r.Stdin); err != nil {
			return nil, fault.Field("stdin", somethingElse, "base64 (see stdin_encoding)")
		}
	}
	return req, nil
}
