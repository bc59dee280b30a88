// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// listMounts lists the mounts of a session.
func listMounts(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	list := api.MountList{Mounts: []api.SessionMount{}}
	for _, m := range s.Current().Mounts {
		list.Mounts = append(list.Mounts, wireMount(&m))
	}
	for _, m := range s.Live() {
		list.Mounts = append(list.Mounts, live(&m))
	}
	return list, nil
}

func wireMount(m *policy.Mount) api.SessionMount {
	w := api.SessionMount{Mode: m.Mode, Owner: m.Owner, NoSymlinks: m.NoSymlinks}
	w.Source, w.SourceBase64 = nameAnswer([]byte(m.Source))
	w.Target, w.TargetBase64 = nameAnswer([]byte(m.Target))
	return w
}

func live(m *policy.LiveMount) api.SessionMount {
	w := wireMount(&m.Mount)
	w.Live, w.Since, w.Attributes = true, &m.Since, m.Attrs
	return w
}

// addMount adds a mount to a session.
func addMount(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var req api.MountRequest
	if err := c.decodeBody(&req, maxSessionBody); err != nil {
		return nil, err
	}
	m := policy.Mount{Source: req.Source, Target: req.Target, Mode: req.Mode, Owner: req.Owner, NoSymlinks: req.NoSymlinks}
	mounted, isNew, err := c.Sup.Mounts(s).Add(c.Context(), m, req.Replace)
	if err != nil {
		return nil, err
	}
	if isNew {
		return Created{Body: live(&mounted)}, nil
	}
	return live(&mounted), nil
}

// removeMount removes a mount from a session.
func removeMount(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	force := query.Get("force")
	if force != "" && force != "true" && force != "false" {
		return nil, fault.Field("force", force, "true or false")
	}
	target, err := requestPath("target", query.Get("target"), query.Get("target_base64"), "")
	if err != nil {
		return nil, err
	}
	return noContent{}, c.Sup.Mounts(s).Remove(c.Context(), string(target), force == "true")
}
