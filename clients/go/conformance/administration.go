package main

import (
	"context"
	"encoding/hex"
	"maps"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	palimpsest "palimpsest.invalid/clients/go"
	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

func init() { maps.Copy(calls, moreCalls) }

func (d *driver) tree(a *args) *palimpsest.Tree { return d.session(a).Tree(a.Memory) }

func (d *driver) access(a *args) *palimpsest.Access { return d.client.Access().Of(a.Tenant) }

func (d *driver) spender(a *args) *palimpsest.Spender {
	switch {
	case a.Session == "":
		return d.client.Spender()
	case a.Memory == "":
		return d.session(a).Spender()
	}
	return d.session(a).Memory(a.Memory).Spender()
}

// moreCalls forget, move, summarize, pay for and administer sessions.
var moreCalls = map[string]call{
	"ask_all": func(ctx context.Context, d *driver, a *args) (any, error) {
		found, err := d.session(a).AskAll(ctx, a.Queries, a.question())
		answers := []any{}
		for _, one := range found {
			if one.Err != nil {
				answers = append(answers, object{"error": errorOf(one.Err)})
				continue
			}
			answer, _ := answerOf(one.Answer, nil)
			answer.(object)["query"] = one.Answer.GetQuery()
			answers = append(answers, answer)
		}
		return object{"answers": answers}, err
	},
	"forget": func(ctx context.Context, d *driver, a *args) (any, error) {
		selection := palimpsest.Selection{Thread: a.Thread, Source: a.Source, Text: a.Text}
		for _, one := range a.Positions {
			selection.Positions = append(selection.Positions, palimpsest.Positions(one))
		}
		done, err := d.session(a).Forget(ctx, selection, &palimpsest.ForgetOptions{
			CaseSensitive: a.CaseSensitive, KeepOut: a.KeepOut, Reason: a.Reason, DryRun: a.DryRun,
			IncludeImports: a.IncludeImports, RequestID: a.RequestID,
		})
		if err != nil {
			return nil, err
		}
		ranges, removal := []any{}, any(nil)
		for _, one := range done.GetPositions() {
			ranges = append(ranges, rangeOf(one))
		}
		if done.Removal != nil {
			removal = done.Removal.GetId()
		}
		return object{"chunks": done.GetChunks(), "positions": ranges, "kept_out": done.GetKeptOut(), "operation": removal}, nil
	},
	"wait_operation": func(ctx context.Context, d *driver, a *args) (any, error) {
		found, err := d.client.Operation(ctx, a.Operation)
		if err == nil {
			found, err = found.Wait(ctx)
		}
		if err != nil {
			return nil, err
		}
		return object{
			"id": found.GetId(), "kind": short(found.GetKind()), "state": short(found.GetState()),
			"session": found.GetSession(), "memory": found.GetMemory(),
		}, nil
	},
	"list_kept_out_texts": func(ctx context.Context, d *driver, a *args) (any, error) {
		return listed("texts", d.client.Access().KeptOutTexts(ctx, a.Session), func(one *pb.KeptOutText) any { return fieldsOf(one) })
	},
	"allow_text": func(ctx context.Context, d *driver, a *args) (any, error) {
		return message(d.client.Access().AllowText(ctx, a.Session, a.ID, nil))
	},
	"list_erasures": func(ctx context.Context, d *driver, a *args) (any, error) {
		return listed("erasures", d.access(a).Erasures(ctx), func(one *pb.Erasure) any { return fieldsOf(one) })
	},
	"get_erasure_receipt": func(ctx context.Context, d *driver, a *args) (any, error) {
		found, err := d.access(a).ErasureReceipt(ctx, a.ID)
		return object{"json": found.GetJson(), "public_key": hex.EncodeToString(found.GetPublicKey())}, err
	},
	"export_session": func(ctx context.Context, d *driver, a *args) (any, error) {
		return object{}, d.session(a).Export(ctx, a.Path)
	},
	"import_session": func(ctx context.Context, d *driver, a *args) (any, error) {
		made, err := d.client.Import(ctx, a.Path, &palimpsest.ImportOptions{Session: a.Session, RestoreDeleted: a.RestoreDeleted})
		if err != nil {
			return nil, err
		}
		return sessionOf(made.Get(ctx))
	},
	"set_budget": func(ctx context.Context, d *driver, a *args) (any, error) {
		return message(d.spender(a).SetBudget(ctx, a.period(), palimpsest.BudgetLimits{Tokens: a.LimitTokens, MicroUSD: a.LimitMicroUSD, ETag: a.ETag}))
	},
	"list_budgets": func(ctx context.Context, d *driver, a *args) (any, error) {
		return listed("budgets", d.spender(a).Budgets(ctx), func(one *pb.Budget) any { return fieldsOf(one) })
	},
	"delete_budget": func(ctx context.Context, d *driver, a *args) (any, error) {
		return object{}, d.spender(a).DeleteBudget(ctx, a.period(), &palimpsest.DeleteOptions{MissingOK: a.MissingOK})
	},
	"list_usage": func(ctx context.Context, d *driver, a *args) (any, error) {
		options := &palimpsest.UsageOptions{}
		for _, one := range a.GroupBy {
			options.GroupBy = append(options.GroupBy, pb.ListUsageRequest_Grouping(pb.ListUsageRequest_Grouping_value["GROUPING_"+upper(one)]))
		}
		found, err := d.spender(a).Usage(ctx, options)
		if err != nil {
			return nil, err
		}
		lines := []any{}
		for _, one := range found.Lines {
			lines = append(lines, fieldsOf(one))
		}
		return object{"total": fieldsOf(found.Total), "lines": lines}, nil
	},
	"create_tree": func(ctx context.Context, d *driver, a *args) (any, error) {
		spec := &pb.TreeSpec{SegmentTokens: a.SegmentTokens, MaxChildren: a.MaxChildren, SummaryTokens: a.SummaryTokens, Model: a.Model}
		made, err := d.session(a).CreateTree(ctx, a.Memory, spec, a.ExistOK)
		if err != nil {
			return nil, err
		}
		return memoryOf(made.Get(ctx, nil))
	},
	"get_tree": func(ctx context.Context, d *driver, a *args) (any, error) {
		found, err := d.tree(a).Outline(ctx, &palimpsest.ReadOptions{Consistency: a.consistency()})
		if err != nil {
			return nil, err
		}
		info, _ := memoryOf(found.GetMemory(), nil)
		made := fieldsOf(found)
		made["info"] = info
		return made, nil
	},
	"get_node": func(ctx context.Context, d *driver, a *args) (any, error) {
		return message(d.tree(a).Node(ctx, a.Node, nil))
	},
	"list_nodes": func(ctx context.Context, d *driver, a *args) (any, error) {
		nodes := d.tree(a).Level(ctx, a.Level, nil)
		if a.Parent != "" {
			nodes = d.tree(a).Children(ctx, a.Parent, nil)
		}
		return listed("nodes", nodes, func(one *pb.TreeNode) any { return fieldsOf(one) })
	},
	"get_node_text": func(ctx context.Context, d *driver, a *args) (any, error) {
		return listed("parts", d.tree(a).Text(ctx, a.Node, nil), func(one *pb.GetNodeTextResponse_Part) any { return fieldsOf(one) })
	},
	"seal_tree": func(ctx context.Context, d *driver, a *args) (any, error) {
		found, err := d.tree(a).Seal(ctx, nil)
		if err != nil {
			return nil, err
		}
		return object{"operation": found.GetId()}, nil
	},
	"create_tenant": func(ctx context.Context, d *driver, a *args) (any, error) {
		return tenantOf(d.client.Access().CreateTenant(ctx, a.Tenant, &palimpsest.TenantOptions{ExistOK: a.ExistOK, DisplayName: a.displayName()}))
	},
	"get_tenant": func(ctx context.Context, d *driver, a *args) (any, error) { return tenantOf(d.access(a).Tenant(ctx)) },
	"list_tenants": func(ctx context.Context, d *driver, a *args) (any, error) {
		return listed("tenants", d.client.Access().Tenants(ctx), func(one *pb.Tenant) any { found, _ := tenantOf(one, nil); return found })
	},
	"update_tenant": func(ctx context.Context, d *driver, a *args) (any, error) {
		update := palimpsest.TenantUpdate{DisplayName: a.DisplayName, Suspended: a.Suspended, Retention: a.retention()}
		return tenantOf(d.client.Access().UpdateTenant(ctx, a.Tenant, update))
	},
	"delete_tenant": func(ctx context.Context, d *driver, a *args) (any, error) {
		return message(d.client.Access().DeleteTenant(ctx, a.Tenant, a.Reason, nil))
	},
	"get_quota": func(ctx context.Context, d *driver, a *args) (any, error) { return message(d.access(a).Quota(ctx)) },
	"update_quota": func(ctx context.Context, d *driver, a *args) (any, error) {
		return message(d.access(a).UpdateQuota(ctx, a.Changes, nil))
	},
	"create_key": func(ctx context.Context, d *driver, a *args) (any, error) {
		scopes := []pb.Scope{}
		for _, one := range a.Scopes {
			scopes = append(scopes, pb.Scope(pb.Scope_value["SCOPE_"+upper(one)]))
		}
		return created(d.access(a).CreateKey(ctx, scopes, &palimpsest.KeyOptions{DisplayName: a.displayName(), SessionPrefix: a.SessionPrefix, ExpiresAt: a.ExpiresAt}))
	},
	"list_keys": func(ctx context.Context, d *driver, a *args) (any, error) {
		return listed("keys", d.access(a).Keys(ctx), func(one *pb.ApiKey) any { return fieldsOf(one) })
	},
	"rotate_key": func(ctx context.Context, d *driver, a *args) (any, error) {
		return created(d.access(a).RotateKey(ctx, a.ID, nil))
	},
	"revoke_key": func(ctx context.Context, d *driver, a *args) (any, error) {
		return message(d.access(a).RevokeKey(ctx, a.ID, nil))
	},
	"list_audit_events": func(ctx context.Context, d *driver, a *args) (any, error) {
		filter := &palimpsest.AuditFilter{Action: a.Action, Session: a.Session, Principal: a.Principal, NewestFirst: a.NewestFirst}
		return listed("events", d.access(a).AuditEvents(ctx, filter), func(one *pb.AuditEvent) any {
			made := fieldsOf(one)
			made["details"] = one.GetDetails().AsMap()
			return made
		})
	},
	"check_audit_log": func(ctx context.Context, d *driver, a *args) (any, error) {
		var before *pb.AuditEvent
		intact := true
		for event, err := range d.access(a).AuditEvents(ctx, nil) {
			if err != nil {
				return nil, err
			}
			intact = intact && palimpsest.AuditFollows(event, before)
			before = event
		}
		_, digest, err := d.access(a).AuditHead(ctx)
		return object{"events": before.GetSequence(), "intact": intact && string(digest) == string(before.GetDigest())}, err
	},
	"set_source_trust": func(ctx context.Context, d *driver, a *args) (any, error) {
		trust := pb.SourceTrust(pb.SourceTrust_value["SOURCE_TRUST_"+upper(a.Trust)])
		return message(d.client.Access().SetSourceTrust(ctx, a.Session, a.Source, trust, nil))
	},
	"list_sources": func(ctx context.Context, d *driver, a *args) (any, error) {
		return message(d.client.Access().Sources(ctx, a.Session))
	},
	"quarantine_source": func(ctx context.Context, d *driver, a *args) (any, error) {
		return message(d.client.Access().QuarantineSource(ctx, a.Session, a.Source, nil))
	},
	"release_source": func(ctx context.Context, d *driver, a *args) (any, error) {
		return message(d.client.Access().ReleaseSource(ctx, a.Session, a.Source, nil))
	},
}

func (a *args) period() pb.BudgetPeriod {
	return pb.BudgetPeriod(pb.BudgetPeriod_value["BUDGET_PERIOD_"+upper(a.Period)])
}

// retention returns the retention of a session or a tenant; nil: it is not given.
func (a *args) retention() *pb.Retention {
	if len(a.Retention) == 0 || string(a.Retention) == "null" {
		return nil
	}
	made := &pb.Retention{}
	if err := protojson.Unmarshal(a.Retention, made); err != nil {
		panic(err)
	}
	return made
}

func (a *args) displayName() string {
	if a.DisplayName == nil {
		return ""
	}
	return *a.DisplayName
}

func created(found *pb.CreateApiKeyResponse, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return object{"key": found.GetKey(), "info": fieldsOf(found.GetApiKey())}, nil
}

func tenantOf(found *pb.Tenant, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	made := fieldsOf(found)
	made["retention"] = fieldsOf(found.GetRetention())
	return made, nil
}

// message returns a message of the API by the names of its fields, or the error of its call.
func message(found protoreflect.ProtoMessage, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return fieldsOf(found), nil
}

// fieldsOf returns all fields of a message; what may be absent, and is, is null.
func fieldsOf(found protoreflect.ProtoMessage) object {
	made, from := object{}, found.ProtoReflect()
	fields := from.Descriptor().Fields()
	for at := range fields.Len() {
		field := fields.Get(at)
		switch {
		case field.HasPresence() && !from.Has(field):
			made[string(field.Name())] = nil
		case field.IsList():
			items := []any{}
			for at := range from.Get(field).List().Len() {
				items = append(items, plain(field, from.Get(field).List().Get(at)))
			}
			made[string(field.Name())] = items
		case !field.IsMap():
			made[string(field.Name())] = plain(field, from.Get(field))
		}
	}
	return made
}

func plain(field protoreflect.FieldDescriptor, value protoreflect.Value) any {
	switch field.Kind() {
	case protoreflect.MessageKind:
		if at, ok := value.Message().Interface().(*timestamppb.Timestamp); ok {
			return at.AsTime().Format(time.RFC3339Nano)
		}
		return fieldsOf(value.Message().Interface())
	case protoreflect.EnumKind:
		return nameOf(field.Enum(), value.Enum())
	case protoreflect.BytesKind:
		return hex.EncodeToString(value.Bytes())
	}
	return value.Interface()
}

// nameOf returns a value of an enum in lower case: empty where it is not given, of a trust "trusted".
func nameOf(of protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	prefix, _ := strings.CutSuffix(string(of.Values().Get(0).Name()), "UNSPECIFIED")
	switch {
	case number != 0:
		return strings.ToLower(strings.TrimPrefix(string(of.Values().ByNumber(number).Name()), prefix))
	case of.Name() == "SourceTrust":
		return "trusted"
	}
	return ""
}
