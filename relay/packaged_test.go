// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// Alert rules and the dashboard use existing metrics and labels. Prometheus reads them in test/packages.
func TestAlertsAndDashboardAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	boxtest.AskForWhatThereIs(t, fedMetrics(t).registry, "../packaging/metrics/boxd-alerts.yaml", "../packaging/metrics/boxd-dashboard.json")
}
