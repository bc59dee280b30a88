// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"strconv"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/audit"
)

// defaultRecords is how many records are sent by default.
const defaultRecords = 100

// getAudit lists the last records of the audit log.
func getAudit(c *Call) (any, error) {
	query := c.R.URL.Query()
	n := defaultRecords
	if text := query.Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > audit.MostRead {
			return nil, fault.Field("n", text, "1 to "+strconv.Itoa(audit.MostRead))
		}
	}
	session, principal, request := query.Get("session"), c.principalNamed(query.Get("principal")), query.Get("request")
	release, err := c.Limits.Reserve(c.Context(), audit.MostBytes) // during the search
	if err != nil {
		return nil, err
	}
	defer release()
	records, truncated, err := c.Audit.Last(c.Context(), n, func(r *audit.Record) bool {
		return (session == "" || r.Session == session) && (principal == "" || r.Principal == principal) && (request == "" || r.Request == request)
	})
	if err != nil {
		return nil, err
	}
	list := api.AuditList{Records: make([]api.AuditRecord, len(records)), Head: c.Audit.Head().String(), Cut: truncated}
	for i, r := range records {
		list.Records[i] = api.AuditRecord{
			Seq: r.Seq, Kind: r.Kind, Time: r.Time, Request: r.Request, Parent: r.Parent, Principal: r.Principal, UID: r.UID, PID: r.PID, Via: r.Via,
			Route: r.Route, Session: r.Session, Owner: r.Owner, Process: r.Process, Status: r.Status, Outcome: r.Outcome, Error: r.Error, Detail: r.Detail,
			TookMS: r.TookMS, What: (*api.AuditWhat)(r.What),
		}
	}
	return list, nil
}
