package palimpsest

import (
	"context"
	"errors"
	"iter"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Access is what administrators do: tenants, keys, trust in sources, erasures and the audit log. It
// needs a key with the scope "admin".
//
// Calls are about the client's own tenant. [Access.Of] is another one, of which only administrators of
// all tenants may ask.
type Access struct {
	connection *connection
	tenant     string
}

// Access returns what administrators do, for the client's own tenant.
func (c *Client) Access() *Access { return &Access{connection: c.connection} }

// Of returns the same for another tenant.
func (a *Access) Of(tenant string) *Access { return &Access{a.connection, tenant} }

// TenantOptions are the settings of a new tenant.
type TenantOptions struct {
	// ExistOK returns a tenant that exists already, as it is.
	ExistOK     bool
	DisplayName string
	Suspended   bool
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// CreateTenant creates a tenant.
func (a *Access) CreateTenant(ctx context.Context, id string, options *TenantOptions) (*pb.Tenant, error) {
	given := orZero(options)
	made, err := a.connection.access.CreateTenant(ctx, &pb.CreateTenantRequest{
		Tenant:    &pb.Tenant{Id: id, DisplayName: given.DisplayName, Suspended: given.Suspended},
		RequestId: given.RequestID,
	})
	if given.ExistOK && errors.Is(err, ReasonTenantExists) {
		return a.Of(id).Tenant(ctx)
	}
	return made, err
}

// Tenant reads the tenant.
func (a *Access) Tenant(ctx context.Context) (*pb.Tenant, error) {
	return a.connection.access.GetTenant(ctx, &pb.GetTenantRequest{Tenant: a.tenant})
}

// Tenants yields all tenants, by id.
func (a *Access) Tenants(ctx context.Context) iter.Seq2[*pb.Tenant, error] {
	request := &pb.ListTenantsRequest{PageSize: maxPage}
	return pages(func(token string) ([]*pb.Tenant, string, error) {
		request.PageToken = token
		page, err := a.connection.access.ListTenants(ctx, request)
		return page.GetTenants(), page.GetNextPageToken(), err
	})
}

// TenantUpdate is what [Access.UpdateTenant] changes; nil leaves it as it is.
type TenantUpdate struct {
	DisplayName *string
	// Suspended refuses all calls of the tenant within 10 seconds, until it is false again.
	Suspended *bool
	// Retention is how long the data of its sessions is kept, where they do not say otherwise.
	Retention *pb.Retention
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// UpdateTenant changes a tenant.
func (a *Access) UpdateTenant(ctx context.Context, id string, update TenantUpdate) (*pb.Tenant, error) {
	tenant, mask := &pb.Tenant{Id: id, Retention: update.Retention}, &fieldmaskpb.FieldMask{}
	if update.DisplayName != nil {
		tenant.DisplayName = *update.DisplayName
		mask.Paths = append(mask.Paths, "display_name")
	}
	if update.Suspended != nil {
		tenant.Suspended = *update.Suspended
		mask.Paths = append(mask.Paths, "suspended")
	}
	if update.Retention != nil {
		mask.Paths = append(mask.Paths, "retention")
	}
	if len(mask.Paths) == 0 {
		return nil, invalid("update", "give DisplayName, Suspended or Retention: an update without any does nothing")
	}
	return a.connection.access.UpdateTenant(ctx, &pb.UpdateTenantRequest{Tenant: tenant, UpdateMask: mask, RequestId: update.RequestID})
}

// DeleteTenant deletes a tenant with all that it has; its erasures and its audit log stay. reason is
// kept in the record of the erasure.
func (a *Access) DeleteTenant(ctx context.Context, id, reason string, options *RequestOptions) (*pb.Erasure, error) {
	return a.connection.access.DeleteTenant(ctx, &pb.DeleteTenantRequest{Tenant: id, Reason: reason, RequestId: orZero(options).RequestID})
}

// Quota reads the quotas that are in force.
func (a *Access) Quota(ctx context.Context) (*pb.Quota, error) {
	return a.connection.access.GetQuota(ctx, &pb.GetQuotaRequest{Tenant: a.tenant})
}

// UpdateQuota sets quotas by their names in the proto, such as "requests_per_second": 0 does not limit,
// nil returns to the service's default. Servers enforce them within 10 seconds.
func (a *Access) UpdateQuota(ctx context.Context, changes map[string]*int64, options *RequestOptions) (*pb.Quota, error) {
	quota, mask := &pb.Quota{Tenant: a.tenant}, &fieldmaskpb.FieldMask{}
	fields := quota.ProtoReflect().Descriptor().Fields()
	for name, limit := range changes {
		field := fields.ByTextName(name)
		if field == nil || name == "tenant" {
			return nil, invalid("changes", "%q is no quota: give names of fields of Quota, such as requests_per_second", name)
		}
		if limit != nil {
			quota.ProtoReflect().Set(field, protoreflect.ValueOfInt64(*limit))
		}
		mask.Paths = append(mask.Paths, name)
	}
	if len(mask.Paths) == 0 {
		return nil, invalid("changes", "give at least one quota")
	}
	return a.connection.access.UpdateQuota(ctx, &pb.UpdateQuotaRequest{Quota: quota, UpdateMask: mask, RequestId: orZero(options).RequestID})
}

// KeyOptions are the settings of a new key.
type KeyOptions struct {
	DisplayName string
	// SessionPrefix limits the key to sessions whose ids begin with it.
	SessionPrefix string
	// ExpiresAt ends it; zero: never.
	ExpiresAt time.Time
}

// CreateKey creates a key with scopes, whose secret (Key) cannot be read again. It is not repeated when
// the connection is lost: list the keys then, and revoke the one that was never used.
func (a *Access) CreateKey(ctx context.Context, scopes []pb.Scope, options *KeyOptions) (*pb.CreateApiKeyResponse, error) {
	given := orZero(options)
	key := &pb.ApiKey{Scopes: scopes, DisplayName: given.DisplayName, SessionPrefix: given.SessionPrefix, ExpiresAt: timeOf(given.ExpiresAt)}
	return a.connection.access.CreateApiKey(ctx, &pb.CreateApiKeyRequest{Tenant: a.tenant, ApiKey: key})
}

// Keys yields all keys from the oldest; expired and revoked ones as well.
func (a *Access) Keys(ctx context.Context) iter.Seq2[*pb.ApiKey, error] {
	request := &pb.ListApiKeysRequest{Tenant: a.tenant, PageSize: maxPage}
	return pages(func(token string) ([]*pb.ApiKey, string, error) {
		request.PageToken = token
		page, err := a.connection.access.ListApiKeys(ctx, request)
		return page.GetApiKeys(), page.GetNextPageToken(), err
	})
}

// RotateOptions are the options of [Access.RotateKey].
type RotateOptions struct {
	// Overlap is how long the old key still works, up to 30 days; nil: 24 hours.
	Overlap *time.Duration
	// ExpiresAt ends the new key; zero: it lives as long as the old one did.
	ExpiresAt time.Time
}

// RotateKey creates a key with the scopes and sessions of another. As CreateKey it is not repeated.
func (a *Access) RotateKey(ctx context.Context, id string, options *RotateOptions) (*pb.CreateApiKeyResponse, error) {
	given := orZero(options)
	request := &pb.RotateApiKeyRequest{Tenant: a.tenant, ApiKey: id, ExpiresAt: timeOf(given.ExpiresAt)}
	if given.Overlap != nil {
		request.Overlap = durationpb.New(*given.Overlap)
	}
	return a.connection.access.RotateApiKey(ctx, request)
}

// RevokeKey revokes a key for good; no server accepts it after 10 seconds.
func (a *Access) RevokeKey(ctx context.Context, id string, options *RequestOptions) (*pb.ApiKey, error) {
	return a.connection.access.RevokeApiKey(ctx, &pb.RevokeApiKeyRequest{Tenant: a.tenant, ApiKey: id, RequestId: orZero(options).RequestID})
}

// Erasures yields what was deleted for good, from the oldest.
func (a *Access) Erasures(ctx context.Context) iter.Seq2[*pb.Erasure, error] {
	request := &pb.ListErasuresRequest{Tenant: a.tenant, PageSize: maxPage}
	return pages(func(token string) ([]*pb.Erasure, string, error) {
		request.PageToken = token
		page, err := a.connection.access.ListErasures(ctx, request)
		return page.GetErasures(), page.GetNextPageToken(), err
	})
}

// ErasureReceipt returns the signed receipt of an erasure, once its last row is removed.
func (a *Access) ErasureReceipt(ctx context.Context, id string) (*pb.ErasureReceipt, error) {
	return a.connection.access.GetErasureReceipt(ctx, &pb.GetErasureReceiptRequest{Tenant: a.tenant, Erasure: id})
}

// KeptOutTexts yields the texts that a session keeps out since they were forgotten.
func (a *Access) KeptOutTexts(ctx context.Context, session string) iter.Seq2[*pb.KeptOutText, error] {
	request := &pb.ListKeptOutTextsRequest{Session: session, PageSize: maxPage}
	return pages(func(token string) ([]*pb.KeptOutText, string, error) {
		request.PageToken = token
		page, err := a.connection.access.ListKeptOutTexts(ctx, request)
		return page.GetTexts(), page.GetNextPageToken(), err
	})
}

// AllowText lets a kept-out text in again, from the next append on.
func (a *Access) AllowText(ctx context.Context, session, id string, options *RequestOptions) (*pb.KeptOutText, error) {
	return a.connection.access.AllowText(ctx, &pb.AllowTextRequest{Session: session, Id: id, RequestId: orZero(options).RequestID})
}

// AuditFilter says which events are meant. Zero values leave a condition out.
type AuditFilter struct {
	// Action is one, or the beginning of several, such as "key.".
	Action             string
	Session, Principal string
	// First and Last are times, both included.
	First, Last time.Time
	NewestFirst bool
}

// AuditEvents yields what was administered, edited by hand and deleted; nil: all of it, oldest first,
// where each event has the digest of a chain.
func (a *Access) AuditEvents(ctx context.Context, filter *AuditFilter) iter.Seq2[*pb.AuditEvent, error] {
	given := orZero(filter)
	request := &pb.ListAuditEventsRequest{
		Tenant: a.tenant, Action: given.Action, Session: given.Session, Principal: given.Principal,
		FirstTime: timeOf(given.First), LastTime: timeOf(given.Last), NewestFirst: given.NewestFirst, PageSize: maxPage,
	}
	return pages(func(token string) ([]*pb.AuditEvent, string, error) {
		request.PageToken = token
		page, err := a.connection.access.ListAuditEvents(ctx, request)
		return page.GetEvents(), page.GetNextPageToken(), err
	})
}

// AuditHead returns the number and the digest of the newest event.
func (a *Access) AuditHead(ctx context.Context) (sequence int64, digest []byte, err error) {
	page, err := a.connection.access.ListAuditEvents(ctx, &pb.ListAuditEventsRequest{Tenant: a.tenant, PageSize: 1})
	return page.GetHead(), page.GetHeadDigest(), err
}

// SetSourceTrust says how much a source is trusted, in a session, or with an empty one in all.
// SOURCE_TRUST_UNSPECIFIED removes the rule. source may be the beginning of several: "web:*".
func (a *Access) SetSourceTrust(ctx context.Context, session, source string, trust pb.SourceTrust, options *RequestOptions) (*pb.SourceRule, error) {
	return a.connection.access.SetSourceTrust(ctx, &pb.SetSourceTrustRequest{
		Session: session, Source: source, Trust: trust, RequestId: orZero(options).RequestID,
	})
}

// Sources returns how much sources are trusted, in a session and in all others, and the memories to
// which a quarantine or a release is not applied yet: PendingMemories.
func (a *Access) Sources(ctx context.Context, session string) (*pb.ListSourcesResponse, error) {
	return a.connection.access.ListSources(ctx, &pb.ListSourcesRequest{Session: session})
}

// QuarantineSource blocks a source of a session, and undoes what its memories derived from it.
func (a *Access) QuarantineSource(ctx context.Context, session, source string, options *RequestOptions) (*pb.QuarantineResult, error) {
	return a.connection.access.QuarantineSource(ctx, &pb.QuarantineSourceRequest{Session: session, Source: source, RequestId: orZero(options).RequestID})
}

// ReleaseSource restores what a quarantine undid.
func (a *Access) ReleaseSource(ctx context.Context, session, source string, options *RequestOptions) (*pb.QuarantineResult, error) {
	return a.connection.access.ReleaseSource(ctx, &pb.ReleaseSourceRequest{Session: session, Source: source, RequestId: orZero(options).RequestID})
}

// timeOf returns a time of the API; nil for zero.
func timeOf(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}
