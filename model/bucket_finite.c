/* bucket_finite: train.check_finite: is what a rank brings to a reduction finite?
 *
 * The look is due before the reduction: behind it every member has what one of them brought, and who it was is lost. */
#include "model/bucket.h"

#include "model/deviations.h"
#include "model/vectors.h"

static bool is_finite(const struct unit_context *context, const void *values, size_t count)
{
    double squares = context->ops->vector_sum_squares(values, count);
    return squares - squares == 0;
}

void bucket_look_before(struct bucket *bucket, const struct unit_context *context)
{
    size_t parts = bucket_is_scattered(context) ? (size_t)bucket->groups->shard->size : 1;
    if (!context->config->train.check_finite) return;
    bucket->sent_finite = is_finite(context, bucket->sent, parts * (bucket_own_length(bucket, context) + bucket->probe_count));
}

void bucket_look(const struct bucket *bucket, const struct unit_context *context)
{
    if (!context->config->train.check_finite) return;
    bool before = decision_site(context->plan, &site_dp_finite_check, bucket->where, true, true);
    struct finite_fact fact = {.step = bucket->where.step, .microbatch = bucket->where.microbatch, .unit = bucket->pieces[0].unit->index,
                               .was = bucket->sent_finite};
    fact.said = before ? fact.was : is_finite(context, bucket->pending, bucket_own_length(bucket, context));
    record_push(context->record, finites, fact);
}
