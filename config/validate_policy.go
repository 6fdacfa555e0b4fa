package config

import (
	"fmt"
	"time"

	keywayv1 "keyway/api/keyway/v1"
)

func (c *checker) policy(at string, p *keywayv1.Policy) {
	c.name(at+".name", p.Name, maxNameLength)
	c.windows(at, p)
	if p.Cap != capTrust && p.Cap != capInject {
		c.add(at+".cap", "%s is not known; known: %s, %s", quote(p.Cap), capTrust, capInject)
	}
	c.storeDown(at, p)
	c.rateMode(at, p)
	c.limit(at+".count_tokens_rpm", p.CountTokensRpm)
	// LoadLocation knows "Local", which is another zone on every machine.
	if _, err := time.LoadLocation(p.TimeZone); err != nil || p.TimeZone == "Local" {
		c.add(at+".time_zone", "%s is not an IANA time zone such as \"Europe/Berlin\"", quote(p.TimeZone))
	}
	var models []string
	for i, m := range p.Models {
		here := fmt.Sprintf("%s.models[%d]", at, i)
		models = c.unique(models, here+".name", m.Name)
		c.reference(here+".name", m.Name, reference{"model", c.models})
		c.windows(here, m)
	}
}

// The bounds of an open window. After the longest a replica has forgotten the
// keys that it knew.
const (
	minOpenWindow = time.Second
	maxOpenWindow = 30 * time.Second
)

func (c *checker) storeDown(at string, p *keywayv1.Policy) {
	if p.OnStoreDown != storeDownOptimistic && p.OptimisticBudget != "" {
		c.add(at+".optimistic_budget", "is only used with on_store_down: %s", storeDownOptimistic)
	}
	switch p.OnStoreDown {
	case storeDownRefuse:
		if p.OpenWindow != nil {
			c.add(at+".open_window", "is only used with on_store_down: %s or %s", storeDownOpen, storeDownOptimistic)
		}
		return
	case storeDownOpen:
		c.openWindow(at, p)
	case storeDownOptimistic:
		c.optimistic(at, p)
	default:
		c.add(at+".on_store_down", "%s is not known; known: %s, %s, %s", quote(p.OnStoreDown), storeDownRefuse, storeDownOpen, storeDownOptimistic)
		return
	}
	c.duration(at+".open_window", p.OpenWindow, span{minOpenWindow, maxOpenWindow})
}

func (c *checker) openWindow(at string, p *keywayv1.Policy) {
	if p.Rpm == 0 && p.Tpm == 0 {
		c.add(at+".on_store_down", "%q needs rpm or tpm, by which it is bounded", storeDownOpen)
	}
	only := onlyRates(p)
	for _, m := range p.Models {
		only = only && onlyRates(m)
	}
	if !only {
		c.add(at+".on_store_down", "%q is for rpm and tpm; budgets, in_flight and images_day cannot be kept without the store", storeDownOpen)
	}
}

func (c *checker) optimistic(at string, p *keywayv1.Policy) {
	if p.OptimisticBudget == "" {
		c.add(at+".optimistic_budget", "is missing: what a replica of authz may let one key or identity spend within an outage, such as \"1.00\"")
	} else if micros, err := ParseMicros(p.OptimisticBudget); err == nil && micros == 0 {
		c.add(at+".optimistic_budget", "must be above 0")
	} else {
		c.amount(at+".optimistic_budget", p.OptimisticBudget, maxBudgetMicros)
	}
	images := p.ImagesDay > 0
	for _, m := range p.Models {
		images = images || m.ImagesDay > 0
	}
	if images {
		c.add(at+".on_store_down", "%q cannot keep images_day without the store", storeDownOptimistic)
	}
}

func (c *checker) rateMode(at string, p *keywayv1.Policy) {
	switch p.RateMode {
	case rateModeCentral:
		return
	case rateModeLeased:
	default:
		c.add(at+".rate_mode", "%s is not known; known: %s, %s", quote(p.RateMode), rateModeCentral, rateModeLeased)
		return
	}
	some := p.Rpm > 0 || p.Tpm > 0
	for _, m := range p.Models {
		some = some || m.Rpm > 0 || m.Tpm > 0
	}
	if !some {
		c.add(at+".rate_mode", "%q needs rpm or tpm, which are what is leased", rateModeLeased)
	}
}

func onlyRates(p windowed) bool {
	return p.GetInFlight() == 0 && p.GetImagesDay() == 0 && p.GetBudgetDay() == "" && p.GetBudgetMonth() == ""
}

// rated is what limits rates; all sets of limits do.
type rated interface {
	GetRpm() int64
	GetRpmBurst() int64
	GetTpm() int64
	GetTpmBurst() int64
	GetInFlight() int64
}

func (c *checker) flow(at string, p rated) {
	for _, limit := range []struct {
		field string
		value int64
	}{
		{".rpm", p.GetRpm()},
		{".tpm", p.GetTpm()},
		{".in_flight", p.GetInFlight()},
		{".rpm_burst", p.GetRpmBurst()},
		{".tpm_burst", p.GetTpmBurst()},
	} {
		c.limit(at+limit.field, limit.value)
	}
	for _, burst := range []struct {
		field       string
		value, rate int64
	}{{"rpm", p.GetRpmBurst(), p.GetRpm()}, {"tpm", p.GetTpmBurst(), p.GetTpm()}} {
		if burst.value > 0 && burst.rate == 0 {
			c.add(at+"."+burst.field+"_burst", "needs %s, by which the bucket fills", burst.field)
		}
	}
}

// windowed is what limits rates and calendar windows.
type windowed interface {
	rated
	GetBudgetDay() string
	GetBudgetMonth() string
	GetImagesDay() int64
}

func (c *checker) windows(at string, p windowed) {
	c.flow(at, p)
	for _, budget := range []struct{ field, value string }{
		{".budget_day", p.GetBudgetDay()}, {".budget_month", p.GetBudgetMonth()},
	} {
		if budget.value != "" {
			c.amount(at+budget.field, budget.value, maxBudgetMicros)
		}
	}
	c.limit(at+".images_day", p.GetImagesDay())
}

func (c *checker) limit(path string, value int64) {
	if value < 0 || value > maxLimit {
		c.add(path, "%d is out of range; 0 (no limit) to %d", value, maxLimit)
	}
}
