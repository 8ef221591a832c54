// The parts of a model's parameters that memory and traffic count apart.
#pragma once

#include "polyhead/cost.h"

namespace polyhead::inline v0::cost {

/// Of one layer: all experts' matrices; everything else of the feed-forward.
Term expert_parameters(const Layer& layer);
Term dense_ffn_parameters(const Layer& layer);

/// Of the model: token and position embeddings; the output matrix, whether it is tied or not.
Term embedding_parameters(const ModelDescription& model);
Term output_parameters(const ModelDescription& model);

/// Bytes of that many weights in whole blocks.
Term stored(std::string id, Count weights, const StorageType& type);

/// Bytes of `weights` weights of a part of the model ("attention", "output", ...; a tied output is
/// the embedding): each type in its share where the model says what its parts are stored in, else
/// as `otherwise`.
Term stored_part(const ModelDescription& model, const Workload& workload, const std::string& part,
                 Count weights, const StorageType& otherwise);

/// What weights and experts of `model` are stored in.
StorageType weight_type_of(const ModelDescription& model, const Workload& workload);
StorageType expert_type_of(const ModelDescription& model, const Workload& workload);

/// Norms and such stay in plain elements where matrices are in blocks (as GGUF has it).
StorageType plain_type_of(const StorageType& type);

}  // namespace polyhead::inline v0::cost
